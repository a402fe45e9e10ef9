"""The container of a job on this machine: its runtime, its image, its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.launch.containers.programs import with_programs

from muster.errors import Mistake
from muster.launch.containers import discover
from muster.launch.containers.discover import container_of
from muster.launch.containers.render import Mount
from muster.launch.target import Target
from muster.spec import JobSpec

PYXIS = "--container-image=IMAGE  [pyxis] the image"


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], **fields})


@pytest.mark.parametrize(
    ("programs", "kind", "chosen"),
    [
        ({"srun": PYXIS, "apptainer": ""}, "sbatch", ("pyxis", "srun")),
        ({"srun": PYXIS, "apptainer": ""}, "local", ("apptainer", "apptainer")),
        ({"srun": "--container=BUNDLE", "singularity": ""}, "sbatch", ("apptainer", "singularity")),
        ({"srun": "", "ch_run": ""}, "allocation", ("charliecloud", "ch-run")),
    ],
)
def test_auto_chooses_pyxis_then_apptainer_then_charliecloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, str], kind: str, chosen: tuple[str, str]
) -> None:
    env = with_programs(tmp_path, **programs)
    monkeypatch.setenv("PATH", env["PATH"])
    assert discover.choose_runtime("auto", kind, env) == chosen


def test_no_runtime_at_all_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Mistake, match="none of apptainer, singularity, ch-run is on PATH"):
        discover.choose_runtime("auto", "sbatch", {"PATH": str(tmp_path)})


def test_a_chosen_runtime_may_exist_only_on_the_nodes() -> None:
    assert discover.choose_runtime("apptainer", "sbatch", {"PATH": ""}) == ("apptainer", "apptainer")
    with pytest.raises(Mistake, match="none of ch-run is on PATH"):
        discover.choose_runtime("charliecloud", "local", {"PATH": ""})


def test_pyxis_on_one_machine_is_refused() -> None:
    with pytest.raises(Mistake, match="use apptainer or charliecloud"):
        discover.choose_runtime("pyxis", "local", {"PATH": ""})


HOME_OUT = "--no-container-mount-home"  # pyxis' option; --from-env sets it before the runtime is known


@pytest.mark.parametrize(
    ("runtime", "help", "expected"),
    [
        ("pyxis", "", [HOME_OUT]),
        ("apptainer", "", ["--no-home"]),
        ("charliecloud", "  --home  mount the home directory\n  --no-home  (deprecated)", []),
        ("charliecloud", "  --no-home  do not mount the home directory", ["--no-home"]),
    ],
)
def test_the_option_against_mounting_home_is_translated_for_the_runtime(
    runtime: str, help: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "_help", lambda program: help)
    spec = job(container_runtime=runtime, container_args=f"{HOME_OUT} --mine", container_image="/i")
    monkeypatch.setattr(discover, "_check_image", lambda image, place: None)
    found = discover.container_of(spec, Target("sbatch", 4), "/home", "/runs", Path("/"))
    assert found is not None and list(found.args) == [*expected, "--mine"]


def test_a_job_without_an_image_has_no_container() -> None:
    assert container_of(job(), Target("sbatch", 2), "/work", "/runs", Path("/")) is None


def test_an_image_on_this_machine_must_exist_unless_only_the_nodes_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "NODE_LOCAL", (str(tmp_path / "node-local"),))
    (tmp_path / "node-local").mkdir()
    missing, local = str(tmp_path / "x.sif"), str(tmp_path / "node-local" / "x.sif")

    def found(image: str, kind: str) -> bool:
        spec = job(container_runtime="apptainer", container_image=image)
        env = with_programs(tmp_path, apptainer="")
        monkeypatch.setenv("PATH", env["PATH"])
        return container_of(spec, Target(kind, 2), "/work", "/runs", tmp_path) is not None

    for image, kind in ((missing, "sbatch"), (missing, "local"), (local, "local")):
        with pytest.raises(Mistake, match="no such file or directory"):
            found(image, kind)
    assert found(local, "sbatch")  # its directory differs between nodes
    with pytest.raises(Mistake, match=r"x.sif: no such file or directory on this host; only images below .*node-local"):
        found("/no/such/directory/x.sif", "sbatch")
    (tmp_path / "x.sif").touch()
    assert found("x.sif", "local")


@pytest.mark.parametrize(
    ("fields", "args"),
    [
        ({"gpus_per_node": 8}, ("--nv",)),
        ({"gres": "gpu:a100:4"}, ("--nv",)),
        ({"gpus_per_node": 8, "container_args": "--rocm"}, ("--rocm",)),
        ({"gres": "nvme:1"}, ()),
        ({}, ()),
    ],
)
def test_apptainer_gets_the_driver_of_the_gpus_that_the_job_requests(
    fields: dict[str, Any], args: tuple[str, ...]
) -> None:
    spec = job(container_runtime="apptainer", container_image="/tmp/no/such/directory/x.sif", **fields)
    found = container_of(spec, Target("sbatch", 2), "/work", "/runs", Path("/"))
    assert found is not None and found.args == args
    assert found.mounts == (Mount("/work", "/work"), Mount("/runs", "/runs")) and found.workdir == "/work"


def test_a_charliecloud_image_without_mount_points_is_refused_with_the_command_that_creates_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    (image / "ch").mkdir(parents=True)
    (image / "work").mkdir()
    spec = job(container_runtime="charliecloud", container_image=str(image))
    monkeypatch.setattr(discover, "_help", lambda program: "")
    with pytest.raises(Mistake, match=f"no directory to mount /runs on; create it: `mkdir -p {image}/runs`"):
        container_of(spec, Target("sbatch", 2), "/work", "/runs", tmp_path)
    monkeypatch.setattr(discover, "_help", lambda program: "--write-fake")
    (image / "ch" / "environment").touch()
    found = container_of(spec, Target("sbatch", 2), "/work", "/runs", tmp_path)
    assert found is not None and found.args == ("--write-fake", "--set-env")


def test_the_help_of_a_missing_program_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not discover.srun_has_pyxis()
    with_programs(tmp_path, srun=PYXIS)
    assert discover.srun_has_pyxis()
