"""Idle clusters: recognizing them, and bringing them down."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.runs.conftest import FakeRun

from muster.rundir import RunPaths, read_record, write_json
from muster.runs import idle
from muster.runs.follow import RunResult, read_result
from muster.runs.idle import bring_down, idle_command, is_idle_cluster, shown_end


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python3", "/elsewhere/agent.pyz", "idle", "/elsewhere"], True),  # the run directory may have been moved
        (["python3", "/elsewhere/agent.pyz", "attach", "/elsewhere"], False),
        (["python3", "train.py", "idle", "x"], False),
        (["python3", "agent.pyz", "idle"], False),
        ([], False),
        (None, False),
    ],
)
def test_an_idle_cluster_is_known_by_its_driver(run: FakeRun, command: Any, expected: bool) -> None:
    write_json(run.job, {"command": command})
    assert is_idle_cluster(run) == expected


def test_the_driver_of_an_idle_cluster_is_recognized(run: FakeRun) -> None:
    write_json(run.job, {"command": idle_command("python3", run)})
    assert is_idle_cluster(run)


@pytest.mark.parametrize(
    ("command", "state", "expected"),
    [(None, "succeeded", "x"), ("idle", "succeeded", "the cluster was shut down"), ("idle", "stopped", "x")],
)
def test_the_end_of_an_idle_cluster_is_not_that_of_a_driver(
    run: FakeRun, command: str | None, state: str, expected: str
) -> None:
    write_json(run.job, {"command": idle_command("python3", run) if command else ["train"]})
    assert shown_end(run, state, "x") == expected


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons of stops; each ends the run with 143."""
    reasons: list[str] = []

    def stop_run(run: FakeRun, reason: str) -> RunResult:
        reasons.append(reason)
        run.ends(143, reason)
        return read_result(run)

    monkeypatch.setattr(idle, "stop_run", stop_run)
    return reasons


def test_a_cluster_that_is_up_is_asked_to_end_with_success(
    run: FakeRun, stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(run.job, {"stop_grace": 5.0})
    run.submitted(job_id="17").begins().publishes("running", updated=time.time())
    waited: list[float] = []

    async def leader(run: RunPaths, seconds: float) -> RunResult:
        assert isinstance(run, FakeRun)
        waited.append(seconds)
        reason = read_record(run.attempt(0).down_request)["reason"]
        run.publishes("succeeded", end_reason=reason).ends(0, reason)
        return read_result(run)

    monkeypatch.setattr(idle, "wait", leader)
    result = bring_down(run, "brought down by ann")
    assert (result.exit_code, result.end_reason, stopped, waited) == (0, "brought down by ann", [], [30.0])


def test_a_cluster_that_does_not_end_in_time_is_stopped(
    run: FakeRun, stopped: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.submitted(job_id="17").begins().publishes("running", updated=time.time())

    async def nobody(run: RunPaths, seconds: float) -> None:
        return None

    monkeypatch.setattr(idle, "wait", nobody)
    assert bring_down(run, "brought down by ann").exit_code == 143
    assert stopped == ["brought down by ann"]


def test_a_cluster_that_is_still_starting_is_stopped(run: FakeRun, stopped: list[str]) -> None:
    run.submitted(job_id="17").begins().publishes("gathering", updated=time.time())
    assert bring_down(run, "brought down by ann").exit_code == 143
    assert stopped == ["brought down by ann"] and read_record(run.attempt(0).down_request) == {}
