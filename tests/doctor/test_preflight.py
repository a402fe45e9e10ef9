"""Warnings before a run about paths that nodes probably do not share."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.doctor import preflight
from muster.doctor.preflight import check_reach, warnings
from muster.launch.plan import Prepared
from muster.launch.target import Target
from muster.rundir import RunPaths
from muster.spec import JobSpec


@pytest.mark.parametrize(
    ("path", "filesystem", "state"),
    [
        ("/home/ann/runs", "nfs4", "pass"),
        ("/home/ann/runs", "ext4", "pass"),  # this may be the file server itself
        ("/tmp/runs", "ext4", "warn"),
        ("/tmpfiles/runs", "ext4", "pass"),
        ("/tmp/runs", "lustre", "pass"),
        ("/run/user/7/runs", "tmpfs", "warn"),
    ],
)
def test_a_path_that_nodes_have_of_their_own_is_a_warning_before_the_run(
    path: str, filesystem: str, state: str
) -> None:
    verdict = check_reach("runs-directory", path, filesystem)
    assert verdict.state == state
    assert ("--runs-dir" in verdict.advice) == (state == "warn")


def prepared(target: Target) -> Prepared:
    spec = JobSpec(command=["true"])
    return Prepared(RunPaths("/tmp/runs/train-1"), spec, target, "python3", "/home/ann/work", script="")


@pytest.fixture(autouse=True)
def local_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "probe_filesystem_type", lambda path: "ext4")


def test_a_submitted_run_in_tmp_is_warned_about_with_the_option_that_helps() -> None:
    (warning,) = warnings(prepared(Target("sbatch", 1)), {})
    assert warning.startswith("the runs directory /tmp/runs is in /tmp, which is usually local to each node; ")
    assert "--runs-dir" in warning


@pytest.mark.parametrize("target", [Target("local", 4), Target("allocation", 1)])
def test_a_run_on_one_machine_needs_no_shared_directory(target: Target) -> None:
    assert warnings(prepared(target), {}) == []


def test_the_lab_s_shared_directory_is_shared_although_it_is_in_tmp(tmp_path: Path) -> None:
    assert warnings(prepared(Target("allocation", 2)), {"MUSTER_LAB_DIR": "/tmp/runs"}) == []
    assert len(warnings(prepared(Target("allocation", 2)), {"MUSTER_LAB_DIR": str(tmp_path)})) == 1
