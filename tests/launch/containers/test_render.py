"""The container of the job's step: mounts, rendering and refused options."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shlex import split
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launch.containers.programs import with_programs
from tests.launch.golden_scripts import SPEC, check_golden, fix_details

from muster.errors import Mistake
from muster.launch.containers import discover
from muster.launch.containers.render import (
    Container,
    Mount,
    all_mounts,
    enter,
    image_is_path,
    parse_mounts,
    registry_warning,
    wrap_step,
)
from muster.launch.plan import plan_run
from muster.launch.target import Target
from muster.spec import JobSpec

CONTAINED = {
    "pyxis": {"container_image": "nvcr.io#nvidia/pytorch:25.01-py3", "container_args": "--no-container-mount-home"},
    "apptainer": {"container_image": "/shared/images/ray.sif", "container_workdir": "/opt/app", "gpus_per_node": 8},
    "charliecloud": {"container_image": "/shared/images/ray", "container_mounts": "/data"},
}


def job(**fields: Any) -> JobSpec:
    return SPEC.model_copy(update={"workdir": "/home", "container_mounts": "/data:/data:ro", **fields})


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The script of a submitted job with each runtime."""
    fix_details(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))  # whatever runtimes this machine has
    monkeypatch.setattr(discover, "_check_image", lambda image, target: None)
    jobs = {runtime: job(container_runtime=runtime, **fields) for runtime, fields in CONTAINED.items()}
    return {runtime: plan_run(spec, Target("sbatch", 4), Path("/")).script for runtime, spec in jobs.items()}


@pytest.mark.parametrize("runtime", CONTAINED)
def test_the_script_is_the_one_that_was_reviewed(scripts: dict[str, str], runtime: str) -> None:
    check_golden(runtime, scripts[runtime])


@pytest.mark.parametrize("runtime", CONTAINED)
def test_the_container_is_around_the_one_step(scripts: dict[str, str], runtime: str) -> None:
    (step,) = [line for line in scripts[runtime].splitlines() if line.startswith("setsid srun")]
    assert ("--container-image" in step) == (runtime == "pyxis")


# -- what is mounted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mounts"),
    [
        ("/data", [Mount("/data", "/data")]),
        ("/data:/mnt", [Mount("/data", "/mnt")]),
        ("/data:/mnt:ro", [Mount("/data", "/mnt", "ro")]),
        ("/data:/mnt:ro+rprivate,~/x", [Mount("/data", "/mnt", "ro+rprivate"), Mount("/home/ann/x", "/home/ann/x")]),
        ("sub, /a ,", [Mount("/home/ann/sub", "/home/ann/sub"), Mount("/a", "/a")]),
        ("", []),
    ],
)
def test_mounts_are_parsed(text: str, mounts: list[Mount]) -> None:
    assert parse_mounts(text, "/home/ann", "/home/ann") == mounts


@pytest.mark.parametrize("text", [":/mnt", "/data:mnt", "/data:/mnt:ro:rw", "/a,:"])
def test_a_malformed_mount_is_refused(text: str) -> None:
    with pytest.raises(Mistake, match="is not SRC"):
        parse_mounts(text, "/home/ann", "/home/ann")


def test_muster_s_directories_are_mounted_once_under_the_same_path_parents_first() -> None:
    assert all_mounts([], ["/home/ann", "/home/ann/muster-runs"]) == (Mount("/home/ann", "/home/ann"),)
    assert all_mounts([], ["/a/b/c", "/runs"]) == (
        Mount("/runs", "/runs"),
        Mount("/a/b/c", "/a/b/c"),
    )
    assert all_mounts([Mount("/home/ann/x", "/home/ann/x")], ["/home/ann"])[0] == Mount("/home/ann", "/home/ann")
    assert all_mounts([], ["/"]) == ()


def test_a_mount_that_is_read_only_or_elsewhere_does_not_replace_muster_s() -> None:
    for asked in (Mount("/home/ann", "/home/ann", "ro"), Mount("/other", "/home/ann")):
        assert Mount("/home/ann/runs", "/home/ann/runs") in all_mounts([asked], ["/home/ann/runs"])


@pytest.mark.parametrize(
    ("runtime", "fields"),
    [
        ("charliecloud", {"container_mounts": "/data:/data:ro"}),
        ("apptainer", {"container_mounts": "/data:/data:rprivate"}),
        ("pyxis", {"container_mounts": "/with blank"}),
        ("pyxis", {"runs_dir": "/with:colon"}),
        ("pyxis", {"container_workdir": "not/from/root"}),
        ("apptainer", {"container_args": "'unclosed"}),
        ("apptainer", {"container_image": "/usr/no-such.sif"}),
    ],
)
def test_options_that_the_runtime_lacks_are_refused(runtime: str, fields: dict[str, str]) -> None:
    chosen = {"container_image": "/shared/images/x.sqsh", "container_mounts": None, **fields}
    spec = job(container_runtime=runtime, **chosen)
    with pytest.raises(Mistake):
        plan_run(spec, Target("sbatch", 2), Path("/"))


# -- which runtime, which interpreter ---------------------------------------------------------------------------------


def test_references_and_paths_are_distinguished_as_the_runtime_does() -> None:
    names = {"ubuntu:24.04": "pyxis", "nvcr.io#nvidia/x:1": "pyxis", "docker://ubuntu": "apptainer"}
    paths = {"/x.sqsh": "pyxis", "./x": "charliecloud", "x.sif": "apptainer", "images/x.sqsh": "pyxis"}
    assert not any(image_is_path(image, runtime) for image, runtime in names.items())
    assert all(image_is_path(image, runtime) for image, runtime in paths.items())


# -- warnings, names, entering -------------------------------------------------------------------------------------


def container(runtime: str = "pyxis", program: str = "srun", image: str = "ubuntu", **fields: Any) -> Container:
    return Container(runtime, program, image, **{"is_path": False, "mounts": (), "workdir": "/w", "args": (), **fields})


def test_a_pull_on_many_nodes_causes_a_warning() -> None:
    assert "each of the 8 nodes would pull it" in (registry_warning(container(), 8) or "")
    assert "enroot import -o image.sqsh docker://ubuntu" in (registry_warning(container(), 64) or "")
    remote = container("apptainer", "singularity", "docker://ubuntu")
    assert "singularity pull image.sif docker://ubuntu" in (registry_warning(remote, 8) or "")
    assert registry_warning(container(), 7) is None
    assert registry_warning(container(image="/x.sqsh", is_path=True), 64) is None


def test_a_container_of_pyxis_is_entered_by_the_name_it_was_given() -> None:
    wrapping = wrap_step(container(), "train-ab12", "SLURMD_NODENAME", 4, "")
    line = next(line for line in wrapping.prepare.splitlines() if line.startswith("container="))
    env = {"SLURM_JOB_ID": "77", "MUSTER_ATTEMPT": "2"}
    said = subprocess.run(["bash", "-c", f'{line}; printf %s "$container"'], env=env, capture_output=True, text=True)
    assert f"--container-name={said.stdout}" in enter(container(), "train-ab12", "77", 2, 0, 1).srun_flags
    own = container(args=("--container-name=mine",))
    assert not any("$container" in flag for flag in wrap_step(own, "train-ab12", "X", 4, "").srun_flags)
    assert "--container-name=mine" in enter(own, "train-ab12", "77", 2, 0, 1).srun_flags


def test_a_named_container_of_pyxis_is_removed_if_the_site_would_keep_it(tmp_path: Path) -> None:
    cleanup = wrap_step(container(), "train-ab12", "SLURMD_NODENAME", 4, "").cleanup
    for listed, removed in (("pyxis_c", True), ("pyxis_77_c", False)):
        with_programs(tmp_path, enroot=listed)
        (tmp_path / "srun").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n')
        (tmp_path / "srun").chmod(0o755)
        (tmp_path / "asked").unlink(missing_ok=True)
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-c", f"container=c\n{cleanup}"], env=env, check=True)
        assert (tmp_path / "asked").exists() == removed
    assert "enroot remove --force" in cleanup


def test_a_container_survives_its_record_unchanged() -> None:
    one = container("apptainer", "apptainer", "/x.sif", is_path=True, mounts=(Mount("/a", "/b", "ro"),), args=("--nv",))
    assert Container.from_record(one.record()) == one


def test_a_container_of_apptainer_that_cannot_be_entered_is_started_again(tmp_path: Path) -> None:
    with_programs(tmp_path, apptainer="")
    (tmp_path / "apptainer").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "apptainer").chmod(0o755)
    one = container(
        "apptainer", "apptainer", "/x y.sif", is_path=True, mounts=(Mount("/a", "/b", "ro"),), args=("--nv",)
    )
    entry = enter(one, "no-such-run", None, 0, 1, 1)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([*entry.prefix, "a command"], env=env, capture_output=True, text=True)
    words = ["exec", "--bind", "/a:/b:ro", "--pwd", "/w", "--nv", "/x y.sif", "a command"]
    assert done.stdout.splitlines() == words, done.stderr


@given(image=st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1))
def test_an_image_s_name_reaches_the_runtime_as_it_was_written(image: str) -> None:
    for runtime in CONTAINED:
        wrapping = wrap_step(container(runtime, "program", image), "r", "HOST", 2, "")
        words = split(" ".join([*wrapping.srun_flags, *wrapping.prefix]))
        assert image in words or f"--container-image={image}" in words
