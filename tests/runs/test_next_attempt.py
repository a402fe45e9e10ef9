"""The decision about a next attempt: readers take it from the job script's record, and wait for that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.rundir import AttemptPaths, read_json, write_json
from muster.runs import follow as following
from muster.runs import monitor, stop
from muster.runs.follow import RunEvent, RunResult, follow, read_result
from muster.runs.index import find_run
from muster.runs.monitor import RunMonitor, finalize_dead
from muster.runs.next_attempt import next_attempt_message, read_next_attempt, script_records_next_attempt
from muster.runs.status import read_status

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FOLLOW_POLL_S", 0.01)
    monkeypatch.setattr(monitor, "NEXT_ATTEMPT_POLL_S", 0.01)


@pytest.fixture(autouse=True)
def without_slurm(fake_slurm: FakeSlurm) -> None:
    """What Slurm knows is up to the test."""


@pytest.fixture
def chained(make_run: Callable[..., FakeRun]) -> FakeRun:
    run = make_run()
    write_json(run.job, {"nodes": 2, "requeue_on": ["exit=7"], "chain": 3})
    return run.submitted(job_id="10", job_ids=["10", "11", "12"])


def decides(run: FakeRun, again: str, attempt: int = 0, cause: str = "exit=7", note: str = "") -> FakeRun:
    """The job script records what follows."""
    write_json(run.attempt(attempt).next_attempt, {"again": again, "cause": cause, "note": note})
    return run


def test_a_job_that_slurm_may_requeue_records_what_follows(make_run: Callable[..., FakeRun]) -> None:
    run = make_run().submitted(job_id="10")
    for sbatch, records in (({}, False), ({"requeue": None}, True)):
        write_json(run.job, {"nodes": 2, "requeue_on": [], "chain": 1, "sbatch": sbatch})
        assert script_records_next_attempt(run) == records


async def test_a_run_is_followed_from_one_attempt_to_the_next_and_says_why(chained: FakeRun) -> None:
    decides(chained.begins(0).ends(7, "the driver exited with 7"), "requeue")
    items: list[Any] = []

    async def collect() -> None:
        async for item in follow(chained):
            items.append(item)
            if isinstance(item, RunEvent):
                decides(chained.begins(1).ends(0, "the driver exited with 0", attempt=1), "none", attempt=1)

    await asyncio.wait_for(collect(), DEADLINE_S)
    told, result = items
    assert told.fields == {"event": "again", "attempt": 0, "again": "requeue", "cause": "exit=7", "note": ""}
    assert isinstance(result, RunResult) and result.exit_code == 0


async def test_the_result_is_yielded_only_after_the_job_script_has_decided(
    chained: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    chained.begins(0).ends(7, "the driver exited with 7")
    polled = threading.Semaphore(0)

    def read_and_count(attempt: AttemptPaths) -> dict[str, Any]:
        recorded = read_next_attempt(attempt)
        polled.release()
        return recorded

    monkeypatch.setattr(monitor, "read_next_attempt", read_and_count)
    waiting = asyncio.ensure_future(anext(follow(chained)))
    for _ in range(3):  # a follower that does not wait for the decision would not look for it again
        assert await asyncio.to_thread(polled.acquire, timeout=DEADLINE_S)
    assert not waiting.done()
    decides(chained, "none")
    result = await asyncio.wait_for(waiting, DEADLINE_S)
    assert isinstance(result, RunResult) and result.exit_code == 7


async def test_a_job_that_vanishes_before_it_begins_again_ends_the_run(
    chained: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "SLURM_POLL_S", 0.0)
    fake_slurm.knows("10", "CANCELLED", chained.script)
    decides(chained.begins(0).ends(7, "the driver exited with 7"), "requeue")
    *_, result = [item async for item in follow(chained)]
    assert (result.exit_code, result.end_reason) == (125, "Slurm job 10, 11, 12 is CANCELLED")


def test_a_job_script_that_was_killed_is_not_waited_for_long(chained: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "NEXT_ATTEMPT_TIMEOUT_S", 0.0)
    assert not RunMonitor(chained.begins(0).ends(7, "x")).will_continue(chained.attempt(0))


def test_a_run_that_begins_again_is_pending_until_then(chained: FakeRun) -> None:
    chained.begins(0).publishes("failed", end_reason="x").ends(7, "the driver exited with 7")
    assert read_status(chained)["state"] == "failed"
    decides(chained, "chain")
    status = read_status(chained)
    assert (status["state"], status["exit_code"], status["sequel"]["again"]) == ("pending", None, "chain")
    assert status["sequel"]["end_reason"] == "the driver exited with 7" and "next_attempt" not in status


def test_an_attempt_in_its_grace_is_not_over_although_it_is_decided_that_another_follows(chained: FakeRun) -> None:
    decides(chained.begins(0).publishes("finishing"), "requeue", cause="timeout")
    assert read_status(chained)["state"] == "finishing"


def test_a_requeued_job_that_was_cancelled_leaves_an_end_and_the_attempt_before_as_it_was(
    chained: FakeRun, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.knows("10", "CANCELLED", chained.script)
    decides(chained.begins(0).ends(7, "the driver exited with 7"), "requeue")
    finalize_dead(chained)
    finalize_dead(chained)
    assert read_json(chained.attempt(0).outcome)["exit_code"] == 7
    assert read_status(chained)["end_reason"] == "Slurm job 10, 11, 12 is CANCELLED"


def test_stopping_a_run_that_waits_to_begin_again_cancels_all_its_jobs(chained: FakeRun, fake_slurm: FakeSlurm) -> None:
    for job, state in {"10": "COMPLETED", "11": "PENDING", "12": "PENDING"}.items():
        fake_slurm.knows(job, state, chained.script)
    decides(chained.begins(0).ends(7, "the driver exited with 7"), "chain").script_ends()
    told: list[str] = []
    assert stop.stop_run(chained, "stopped by alice", log=told.append).exit_code == 143
    assert fake_slurm.called("scancel")[0] == "11 12" and told[0] == "cancelled Slurm job 11, 12"
    assert read_json(chained.attempt(1).stop_request)["patient"] is True


def test_any_job_of_a_chain_names_its_run(chained: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_RUNS_DIR", chained.root.rpartition("/")[0])
    assert find_run("11").root == chained.root


@pytest.mark.parametrize(
    ("next_attempt", "words"),
    [
        ({}, None),
        ({"again": "none", "cause": "exit=3", "note": ""}, None),
        ({"again": "none", "cause": "exit=7", "note": "too often"}, "not requeued after exit=7: too often"),
        ({"again": "chain", "cause": "timeout", "note": ""}, "the next job of the chain follows after timeout"),
    ],
)
def test_the_decision_about_the_next_attempt_has_a_message(next_attempt: dict[str, str], words: str | None) -> None:
    assert next_attempt_message(next_attempt) == words


def test_the_result_says_why_the_job_is_not_requeued_again(chained: FakeRun) -> None:
    note = "it was started again 3 times, and --max-requeues is 3"
    decides(chained.begins().ends(143, "the job received SIGTERM: time limit"), "none", cause="timeout", note=note)
    reason = read_result(chained).end_reason
    assert reason == f"the job received SIGTERM: time limit; not requeued after timeout: {note}"
