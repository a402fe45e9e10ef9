"""One agent cancels the Slurm job that its job script does not end, and cancels no other job."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.fake_slurm import FakeSlurm, fake_slurm

from muster.agent import abandoned_job
from muster.agent.abandoned_job import NODES_WITHOUT_CLAIM, cancel_abandoned_job
from muster.agent.job import Identity
from muster.rundir import RunPaths, read_record, write_json

__all__ = ["fake_slurm"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run of Slurm job 17 that is over; its job script does nothing and has no time left."""
    monkeypatch.setattr(abandoned_job, "SCRIPT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(abandoned_job, "CLAIM_POLL_S", 0.01)
    monkeypatch.setattr(abandoned_job, "CLAIM_TIMEOUT_S", 5.0)
    run = RunPaths(str(tmp_path / "run"))
    os.makedirs(run.attempt(0).root)
    write_json(run.attempt(0).slurm_job, {"job_id": "17", "restarts": 1})
    write_json(run.attempt(0).outcome, {"exit_code": 125})
    return run


def agent(run: RunPaths, node_index: int) -> Identity:
    return Identity(node_index, f"n{node_index + 1}", run, run.attempt(0), local=False)


async def leave(run: RunPaths, *node_indexes: int) -> None:
    for node_index in node_indexes:
        await cancel_abandoned_job(agent(run, node_index))


def test_of_all_nodes_one_cancels_the_job(run: RunPaths, fake_slurm: FakeSlurm) -> None:
    fake_slurm.knows("17", "RUNNING", run.script, restarts=1)
    with ProcessPoolExecutor(8, multiprocessing.get_context("fork")) as agents:  # each is a process, as on nodes
        list(agents.map(partial(leave_alone, run), range(1, 33)))
    assert len(fake_slurm.called("squeue")) == 1 and fake_slurm.called("scancel") == ["17"]


def leave_alone(run: RunPaths, node_index: int) -> None:
    asyncio.run(leave(run, node_index))


async def test_if_one_node_cannot_reach_slurm_another_tries(run: RunPaths, fake_slurm: FakeSlurm) -> None:
    fake_slurm.refuses("squeue: error: Unable to contact slurm controller")
    await leave(run, 1)
    assert not os.path.exists(run.attempt(0).job_claim) and fake_slurm.called("scancel") == []
    (Path(fake_slurm.path).parent / "refuses").unlink()
    fake_slurm.knows("17", "RUNNING", run.script, restarts=1)
    await leave(run, 2)
    assert fake_slurm.called("scancel") == ["17"]


@pytest.mark.parametrize(
    ("state", "restarts", "uid"),
    [("RUNNING", 2, None), ("PENDING", 1, None), ("COMPLETING", 1, None), ("RUNNING", 1, os.geteuid() + 1)],
    ids=["started again", "requeued", "ends already", "another user's"],
)
async def test_a_node_that_was_cut_off_does_not_cancel_what_the_job_is_now(
    run: RunPaths, fake_slurm: FakeSlurm, state: str, restarts: int, uid: int | None
) -> None:
    fake_slurm.knows("17", state, run.script, restarts=restarts, uid=uid)
    await leave(run, 1)
    assert len(fake_slurm.called("squeue")) == 1 and fake_slurm.called("scancel") == []


async def test_the_user_s_own_allocation_is_left_alone(run: RunPaths, fake_slurm: FakeSlurm) -> None:
    """Only the job script of a job that Muster submitted writes a record of it."""
    os.unlink(run.attempt(0).slurm_job)
    fake_slurm.knows("17", "RUNNING", run.script, restarts=1)
    await leave(run, 1, 2)
    assert fake_slurm.calls == []


async def test_if_no_file_can_be_written_a_few_nodes_cancel_the_job(
    run: RunPaths, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, value: object) -> bool:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(abandoned_job, "create_exclusive", full)
    fake_slurm.knows("17", "RUNNING", run.script, restarts=1)
    await leave(run, NODES_WITHOUT_CLAIM + 1)
    assert fake_slurm.calls == []
    await leave(run, NODES_WITHOUT_CLAIM)
    assert fake_slurm.called("scancel") == ["17"]


@pytest.fixture
def batch_host(run: RunPaths) -> Iterator[None]:
    """A host that answers at the address that the first leader has published."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        write_json(run.attempt(0).leader(), {"rank": 0, "addresses": ["127.0.0.2"], "port": server.getsockname()[1]})
        yield


async def test_a_job_script_that_has_seen_the_end_is_left_to_end_the_job(
    run: RunPaths, fake_slurm: FakeSlurm, batch_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abandoned_job, "SCRIPT_TIMEOUT_S", 60.0)
    Path(run.attempt(0).job_end).write_text("seen\n")
    await leave(run, 1)
    assert fake_slurm.calls == []


async def test_a_batch_host_that_answers_without_its_job_script_does_not_keep_the_job(
    run: RunPaths, fake_slurm: FakeSlurm, batch_host: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host was restarted: its kernel answers, its script is gone."""
    monkeypatch.setattr(abandoned_job, "SCRIPT_TIMEOUT_S", 1.0)
    fake_slurm.knows("17", "RUNNING", run.script, restarts=1)
    await leave(run, 1)
    assert fake_slurm.called("scancel") == ["17"] and read_record(run.attempt(0).job_claim)["rank"] == 1
