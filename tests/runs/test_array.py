"""Waiting for the runs of a job array."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.errors import BackendError
from muster.rundir import write_json
from muster.runs import array, monitor
from muster.runs.array import as_completed
from muster.runs.follow import RunResult
from muster.slurm.jobs import QueuedJob, SlurmJobs

DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch, fake_slurm: FakeSlurm) -> None:
    monkeypatch.setattr(array, "ARRAY_POLL_S", 0.01)
    monkeypatch.setattr(monitor, "NEXT_ATTEMPT_POLL_S", 0.01)


@pytest.fixture
def tasks(make_run: Callable[..., FakeRun]) -> list[FakeRun]:
    return [make_run(f"train-{number}").submitted(job_id=f"17_{number}") for number in range(3)]


def ends(run: FakeRun, code: int, attempt: int = 0) -> None:
    run.begins(attempt).publishes("succeeded" if code == 0 else "failed", attempt=attempt)
    run.ends(code, f"the driver exited with {code}", attempt=attempt).script_ends(attempt)


def queued(task: FakeRun, state: str, job_id: str) -> QueuedJob:
    return QueuedJob(job_id, state, 0, 0, 0.0, task.script)


async def test_each_run_is_yielded_when_it_ends_and_slurm_is_asked_nothing(
    tasks: list[FakeRun], fake_slurm: FakeSlurm
) -> None:
    ends(tasks[1], 0)
    found: list[tuple[str, int]] = []

    async def collect() -> None:
        async with aclosing(as_completed(tasks)) as results:
            async for result in results:
                found.append((result.run, result.exit_code))
                if len(found) == 1:
                    ends(tasks[2], 7)
                elif len(found) == 2:
                    ends(tasks[0], 0)

    await asyncio.wait_for(collect(), DEADLINE_S)
    assert found == [("train-1", 0), ("train-2", 7), ("train-0", 0)]
    assert fake_slurm.calls == []


async def test_a_run_that_another_attempt_follows_is_yielded_after_that(tasks: list[FakeRun]) -> None:
    first, *others = tasks
    write_json(first.job, {"nodes": 2, "requeue_on": ["exit=7"]})
    ends(first, 7)
    write_json(first.attempt(0).next_attempt, {"again": "requeue", "cause": "exit=7", "note": ""})
    ends(others[0], 0)
    found: list[tuple[str, int]] = []

    async def collect() -> None:
        async with aclosing(as_completed([first, others[0]])) as results:
            async for result in results:
                found.append((result.run, result.exit_code))
                if len(found) == 1:
                    ends(first, 0, attempt=1)
                    write_json(first.attempt(1).next_attempt, {"again": "none", "cause": "", "note": ""})

    await asyncio.wait_for(collect(), DEADLINE_S)
    assert found == [("train-1", 0), ("train-0", 0)]


async def test_one_query_finds_all_runs_whose_job_has_ended_silently_and_an_unanswered_one_changes_nothing(
    tasks: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SlurmJobs] = []

    def answers() -> Iterator[list[QueuedJob]]:
        yield [queued(task, "RUNNING", f"17_{number}") for number, task in enumerate(tasks)]
        yield [queued(tasks[0], "CANCELLED", "17_0"), queued(tasks[1], "RUNNING", "17_1")]
        yield []

    remaining = answers()

    def list_jobs(jobs: SlurmJobs) -> list[QueuedJob]:
        asked.append(jobs)
        if len(asked) == 1:
            raise BackendError("Slurm does not answer")
        return next(remaining)

    monkeypatch.setattr(array, "SLURM_POLL_S", 0.0)
    monkeypatch.setattr(array, "list_jobs", list_jobs)
    found: list[RunResult] = []

    async def collect() -> None:
        async with aclosing(as_completed(tasks)) as results:
            async for result in results:
                found.append(result)

    await asyncio.wait_for(collect(), DEADLINE_S)
    assert [(result.run, result.exit_code, result.end_reason) for result in found] == [
        ("train-0", 125, "Slurm job 17_0 is CANCELLED"),
        ("train-2", 125, "Slurm job 17_2 is unknown to Slurm"),
        ("train-1", 125, "Slurm job 17_1 is unknown to Slurm"),
    ]
    assert set(asked) == {SlurmJobs(("17",))} and len(asked) == 4
