"""Stopping a run from outside: the request, and scancel without a leader."""

from __future__ import annotations

import asyncio
import getpass
import queue
import socket
import time
from collections.abc import Callable

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.errors import BackendError
from muster.rundir import RunPaths, read_record, write_json
from muster.runs import follow, stop
from muster.runs.follow import RunResult, read_result
from muster.runs.stop import STOP_MARGIN_S, is_live, request_stop, stop_reason, stop_run, stop_timeout, wait


@pytest.fixture(autouse=True)
def without_slurm(fake_slurm: FakeSlurm) -> None:
    """What Slurm knows is up to the test."""


def answers_after(monkeypatch: pytest.MonkeyPatch, calls: int, end: Callable[[FakeRun], object]) -> list[float]:
    """Make `wait` time out until it has been called this often; return the timeouts."""
    waited: list[float] = []

    async def pretend(run: RunPaths, seconds: float) -> RunResult | None:
        assert isinstance(run, FakeRun)
        waited.append(seconds)
        if len(waited) < calls:
            return None
        end(run)
        return read_result(run)

    monkeypatch.setattr(stop, "wait", pretend)
    return waited


def test_the_first_request_is_kept(run: FakeRun) -> None:
    attempt = run.begins().attempt(0)
    request_stop(attempt, "first", 2)
    request_stop(attempt, "second", 15)
    assert read_record(attempt.stop_request) == {"reason": "first", "signal": 2, "patient": True}


def test_the_reason_names_user_and_host() -> None:
    assert stop_reason() == f"stopped by {getpass.getuser()} on {socket.gethostname()}"


def test_a_stop_may_take_the_grace_of_the_driver_and_a_margin(run: FakeRun) -> None:
    assert stop_timeout(run) == 30.0 + STOP_MARGIN_S
    write_json(run.job, {"stop_grace": 5.0})
    assert stop_timeout(run) == 5.0 + STOP_MARGIN_S


def test_a_run_is_live_until_it_has_an_outcome(run: FakeRun) -> None:
    assert is_live(run.begins())
    assert not is_live(run.ends(0, "done"))


def test_a_run_that_has_ended_is_not_asked_to_stop(run: FakeRun) -> None:
    run.submitted(kind="local").begins().publishes("failed", end_reason="it broke").ends(7, "it broke")
    assert stop_run(run, "stopped by ann").exit_code == 7
    assert read_record(run.attempt(0).stop_request) == {}


def test_a_leader_gets_the_request_and_time_to_end_the_run(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(run.job, {"stop_grace": 5.0})
    run.submitted(kind="local", time=time.time()).begins().publishes("running", updated=time.time())

    def end(run: FakeRun) -> None:
        request = read_record(run.attempt(0).stop_request)
        run.publishes("stopped", end_reason=request["reason"]).ends(128 + request["signal"], request["reason"])

    waited = answers_after(monkeypatch, 1, end)
    result = stop_run(run, "stopped by ann", signum=2)
    assert (result.exit_code, result.end_reason, waited) == (130, "stopped by ann", [5.0 + STOP_MARGIN_S])


def test_a_local_run_that_does_not_end_is_an_error(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.submitted(kind="local", time=time.time()).begins().publishes("running", updated=time.time())
    answers_after(monkeypatch, 10, lambda run: None)
    with pytest.raises(BackendError, match=f"{run.run_id} did not end within 55 s of the stop request"):
        stop_run(run, "stopped by ann")


def test_a_job_whose_leader_does_not_answer_is_cancelled(
    run: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.submitted(job_id="17", time=time.time()).begins().publishes("running", updated=time.time())
    fake_slurm.knows("17", "RUNNING", run.script)

    def end(run: FakeRun) -> None:
        assert fake_slurm.called("scancel") == ["17"]
        fake_slurm.knows("17", "CANCELLED", run.script)
        run.ends(143, "the job was cancelled").script_ends()

    answers_after(monkeypatch, 2, end)
    told: list[str] = []
    assert stop_run(run, "stopped by ann", log=told.append).exit_code == 143
    assert told == ["cancelled Slurm job 17"]


def test_a_job_that_has_not_begun_is_cancelled_and_has_an_outcome(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    run.submitted(job_id="17", time=time.time())
    fake_slurm.knows("17", "PENDING", run.script)
    result = stop_run(run, "stopped by ann")
    assert (result.state, result.exit_code) == ("stopped", 143)
    assert result.end_reason == "job 17 was cancelled before it began"
    assert fake_slurm.called("scancel")[0] == "17"
    assert read_record(run.attempt(0).stop_request)["reason"] == "stopped by ann"  # for a job that begins all the same


def test_the_pending_jobs_of_a_chain_are_cancelled_before_the_leader_is_waited_for(
    run: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.submitted(job_id="17", job_ids=["17", "18"], time=time.time()).begins()
    run.publishes("running", updated=time.time())
    fake_slurm.knows("17", "RUNNING", run.script)
    fake_slurm.knows("18", "PENDING", run.script + " 2")

    def end(run: FakeRun) -> None:
        assert [call.split()[-1] for call in fake_slurm.called("scancel")] == ["18"]
        for job in ("17", "18"):
            fake_slurm.knows(job, "COMPLETED", run.script)
        run.publishes("stopped").ends(143, "stopped by ann").script_ends()

    answers_after(monkeypatch, 1, end)
    assert stop_run(run, "stopped by ann").exit_code == 143


def test_waiting_for_a_run_ends_with_its_result_or_at_the_timeout(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "FOLLOW_POLL_S", 0.01)
    run.submitted(kind="local").begins()
    assert asyncio.run(wait(run, 0.05)) is None
    run.publishes("succeeded").ends(0, "done")
    result = asyncio.run(wait(run, 120.0))
    assert result is not None and result.exit_code == 0


def test_a_stop_that_takes_long_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "NOTICE_S", 0.0)
    said: queue.Queue[str] = queue.Queue()
    with stop._notice("waiting for the nodes", said.put):
        assert said.get(timeout=120) == "waiting for the nodes"


def test_a_stop_that_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "NOTICE_S", 1000.0)
    said: list[str] = []
    with stop._notice("waiting for the nodes", said.append):
        pass
    assert said == []
