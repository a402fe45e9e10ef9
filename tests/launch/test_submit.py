"""Starting a prepared run: with sbatch, detached, or beside this process."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fake_slurm import FakeSlurm, fake_slurm

from muster.errors import BackendError, Mistake, SubmissionRefused
from muster.launch import run_writer, submit
from muster.launch.plan import Prepared, array_runs, plan_run
from muster.launch.submit import attached, start_detached, submit_batch, submit_batches
from muster.launch.target import Target
from muster.rundir.records import read_submission
from muster.runs.index import all_runs
from muster.spec import JobSpec

__all__ = ["fake_slurm"]

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def private_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(run_writer, "_archive", lambda python, sandbox, endpoint: b"archive")
    monkeypatch.setattr(run_writer, "_library", lambda python, sandbox: b"archive")
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "MUSTER_")):
            monkeypatch.delenv(name)


def planned(directory: Path, kind: str = "sbatch", nodes: int = 2, **fields: Any) -> Prepared:
    spec = JobSpec(**{"command": ["true"], "name": "train", "python": sys.executable, "nodes": nodes, **fields})
    return plan_run(spec, Target(kind, nodes), directory)


def run_dirs(directory: Path) -> list[str]:
    return os.listdir(directory / "muster-runs") if (directory / "muster-runs").exists() else []


def test_a_job_whose_record_cannot_be_written_is_cancelled(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(submit, "write_submission", full)
    monkeypatch.setattr(submit, "WRITE_RETRY_S", 0.0)
    with pytest.raises(
        BackendError, match=r"cancelled Slurm job 17: cannot write to the run directory .*No space left"
    ):
        submit_batch(planned(tmp_path))
    assert fake_slurm.called("scancel") == ["17"]


def test_a_submitted_run_is_recorded_and_can_be_found(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # runs of the working directory are found as well
    prepared = planned(tmp_path)
    assert submit_batch(prepared) == "17"
    assert fake_slurm.called("sbatch")[-1].endswith(prepared.run.script)
    record = read_submission(prepared.run)
    assert (record.run, record.backend, record.kind) == (prepared.run.run_id, "slurm", "sbatch")
    assert (record.job_id, record.job_ids, record.script) == ("17", ("17",), prepared.run.script)
    assert (record.submitted_from, record.uid, record.pid) == ("home", os.geteuid(), None)
    assert record.host == socket.gethostname()
    assert record.asked is not None and record.time is not None and record.asked <= record.time
    assert [run.root for run in all_runs()] == [prepared.run.root]


def test_a_refused_job_leaves_no_run_directory(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    prepared = planned(tmp_path)
    fake_slurm.refuses("sbatch: error: Invalid account")
    with pytest.raises(SubmissionRefused, match="Invalid account"):
        submit_batch(prepared)
    assert run_dirs(tmp_path) == []


def test_a_chain_of_which_a_job_is_refused_is_cancelled(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = submit.client.submit

    def limited(script: str, options: Any, more: Any = (), arguments: Any = ()) -> Any:
        if arguments == ["3"]:
            raise SubmissionRefused("too many jobs")
        return accepted(script, options, more, arguments)

    monkeypatch.setattr(submit.client, "submit", limited)
    with pytest.raises(SubmissionRefused, match="job 3 of the chain: too many jobs; the 2 jobs before it were cancel"):
        submit_batch(planned(tmp_path, chain=3))
    assert fake_slurm.called("scancel") == ["17 18"] and run_dirs(tmp_path) == []


def test_all_runs_of_an_array_share_one_submission_and_each_has_its_task(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    runs = array_runs(planned(tmp_path, array="0-2"))
    assert submit_batches(runs) == "17" and len(fake_slurm.called("sbatch")) == 1
    records = [read_submission(prepared.run) for prepared in runs]
    assert [record.job_id for record in records] == ["17_0", "17_1", "17_2"]
    assert {record.script for record in records} == {runs[0].run.script}


def test_a_range_of_nodes_may_begin_in_a_partition_and_end_beyond_it(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    assert submit_batch(planned(tmp_path, nodes=70, min_nodes=60)) == "17"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "--nodes 65: the default partition has 64 nodes"),
        ({"partition": "lab", "spares": 3}, "--nodes 65 with --spares 3: partition lab has 64 nodes"),
        ({"partition": "unknown"}, None),
    ],
)
def test_a_job_that_is_larger_than_its_partition_is_refused(
    tmp_path: Path, fake_slurm: FakeSlurm, fields: dict[str, Any], error: str | None
) -> None:
    prepared = planned(tmp_path, nodes=65, **fields)
    if error is None:  # Slurm decides
        assert submit_batch(prepared) == "17"
        return
    with pytest.raises(Mistake, match=error):
        submit_batch(prepared)
    assert fake_slurm.called("sbatch") == [] and run_dirs(tmp_path) == []


def test_the_partitions_of_this_cluster_say_nothing_about_another(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submit_batch(planned(tmp_path, nodes=65, sbatch={"clusters": "west"})) == "17"
    monkeypatch.setenv("SBATCH_CLUSTERS", "west")
    assert submit_batch(planned(tmp_path, nodes=65)) == "18"
    assert fake_slurm.called("sinfo") == []


def test_a_detached_run_is_recorded_with_the_pid_of_its_session(tmp_path: Path) -> None:
    script = f"#!/bin/bash\nps -o pid=,sid= -p $$ >{tmp_path}/seen; pwd; cat\n"
    prepared = replace(planned(tmp_path, "local"), script=script)
    pid = start_detached(prepared)
    assert os.waitpid(pid, 0)[1] == 0
    assert (tmp_path / "seen").read_text().split() == [str(pid)] * 2
    assert Path(prepared.run.output_file).read_text() == f"{tmp_path}\n"
    record = read_submission(prepared.run)
    assert (record.kind, record.pid, record.job_id, record.job_ids) == ("local", pid, None, ())


async def test_an_attached_run_ends_before_its_context_does(tmp_path: Path) -> None:
    prepared = replace(planned(tmp_path, "local"), script="#!/bin/bash\nread -r line <fifo; echo $line; exit 7\n")
    os.mkfifo(tmp_path / "fifo")

    async def run() -> int:
        async with attached(prepared) as process:
            assert read_submission(prepared.run).pid == process.pid
            await asyncio.to_thread((tmp_path / "fifo").write_text, "hello\n")
        return (await process.wait()).shell_code

    assert await asyncio.wait_for(run(), DEADLINE_S) == 7
    assert Path(prepared.run.output_file).read_text() == "hello\n"


def test_only_a_run_inside_an_allocation_has_the_allocation_s_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    assert submit.job_id_here(planned(tmp_path, "allocation")) == "42"
    assert submit.job_id_here(planned(tmp_path, "local")) is None
