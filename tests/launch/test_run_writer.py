"""The run directory as it is written before the job is submitted."""

from __future__ import annotations

import errno
import os
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.fake_slurm import FakeSlurm, fake_slurm

from muster.errors import BackendError
from muster.launch import run_writer
from muster.launch.plan import Prepared, plan_run
from muster.launch.run_writer import write_run
from muster.launch.target import Target
from muster.rundir import read_record
from muster.rundir.tokens import derive_ray_token
from muster.spec import JobSpec

__all__ = ["fake_slurm"]


@pytest.fixture(autouse=True)
def small_archives(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return the arguments with which archives are built; they are built elsewhere."""
    built: list[tuple[str, bool]] = []

    def build(python: str, sandbox: bool, endpoint: bool = False) -> bytes:
        built.append((python, sandbox))
        return b"archive"

    monkeypatch.setattr(run_writer, "_archive", build)
    monkeypatch.setattr(run_writer, "_library", build)
    return built


def planned(directory: Path, kind: str = "local", nodes: int = 2, **fields: Any) -> Prepared:
    spec = JobSpec(**{"command": ["python", "train.py"], "python": sys.executable, **fields})
    return plan_run(spec, Target(kind, nodes), directory)


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_all_files_of_a_run_are_written_and_secrets_are_the_user_s_only(tmp_path: Path) -> None:
    prepared = planned(tmp_path, env={"HF_TOKEN": "verysecret1"})
    write_run(prepared)
    run = prepared.run
    assert sorted(os.listdir(run.root)) == [
        "agent.pyz",
        "env.json",
        "job.json",
        "job.sh",
        "muster-library.zip",
        "output",
        "ray-token",
        "token",
    ]
    assert [mode(path) for path in (run.token, run.ray_token, run.env)] == [0o600] * 3
    assert (mode(run.job), mode(run.script), mode(run.root), mode(run.output_dir)) == (0o600, 0o700, 0o700, 0o700)
    assert Path(run.script).read_text() == prepared.script
    token = Path(run.token).read_text()
    assert len(token) == 64 and Path(run.ray_token).read_bytes() == derive_ray_token(token.encode())
    assert "verysecret1" not in Path(run.job).read_text() and read_record(run.job)["env"] == ["HF_TOKEN"]
    assert read_record(run.env) == {"HF_TOKEN": "verysecret1"}


def test_a_command_with_a_secret_is_readable_by_the_user_only(tmp_path: Path) -> None:
    prepared = planned(tmp_path, command=["x", "--password", "verysecret1"])
    write_run(prepared)
    assert mode(prepared.run.job) == 0o600


def test_of_services_others_see_neither_commands_nor_values(
    tmp_path: Path, small_archives: list[tuple[str, bool]]
) -> None:
    service = {"command": ["serve", "--password", "verysecret1"], "env": {"HF_TOKEN": "verysecret2"}}
    prepared = planned(tmp_path, services={"web": service})
    write_run(prepared)
    assert "verysecret" not in Path(prepared.run.job).read_text()
    public = read_record(prepared.run.job)["services"]["web"]
    assert public["env"] == ["HF_TOKEN"] and "command" not in public
    assert mode(prepared.run.services) == 0o600
    assert read_record(prepared.run.services)["web"]["env"] == {"HF_TOKEN": "verysecret2"}
    assert small_archives == [(sys.executable, False)] * 2


def test_the_archives_have_the_sandbox_for_a_job_with_one(
    tmp_path: Path, small_archives: list[tuple[str, bool]]
) -> None:
    write_run(planned(tmp_path, services={"sandbox": {"kind": "sandbox"}}))
    assert small_archives == [(sys.executable, True)] * 2


def test_virtual_nodes_share_the_cpus_of_this_machine(tmp_path: Path) -> None:
    prepared = planned(tmp_path, nodes=2)
    write_run(prepared)
    job = read_record(prepared.run.job)
    assert job["cpus_per_node"] == max(1, len(os.sched_getaffinity(0)) // 2)
    assert (job["signal_grace"], job["kill_wait"]) == (30.0, None)
    assert (job["run"], job["backend"], job["nodes"]) == (prepared.run.run_id, "local", 2)


@pytest.mark.parametrize(("grace", "signal_grace"), [(30.0, 18.0), (5.0, 5.0)])
def test_after_slurm_s_signal_the_driver_has_60_percent_of_killwait(
    tmp_path: Path, fake_slurm: FakeSlurm, grace: float, signal_grace: float
) -> None:
    prepared = planned(tmp_path, "sbatch", stop_grace=grace)
    write_run(prepared)
    job = read_record(prepared.run.job)
    assert (job["signal_grace"], job["kill_wait"], job["cpus_per_node"]) == (signal_grace, 30.0, None)


def test_a_runs_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "muster-runs").touch()
    with pytest.raises(BackendError, match=f"cannot write to the runs directory {tmp_path}/muster-runs: "):
        write_run(planned(tmp_path))


def test_an_error_leaves_no_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(python: str, sandbox: bool) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_writer, "_library", fail)
    with pytest.raises(BackendError, match=f"cannot write to the runs directory {tmp_path}/muster-runs: No space left"):
        write_run(planned(tmp_path))
    assert os.listdir(tmp_path / "muster-runs") == []


def test_archives_are_built_once_for_all_runs_of_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for _ in range(2):
        prepared = planned(tmp_path)
        write_run(prepared)
        assert zipfile.is_zipfile(prepared.run.agent) and zipfile.is_zipfile(prepared.run.library)
    assert run_writer._archive.cache_info().hits >= 1
