"""Whether more will come of a run: Slurm is asked rarely, and an end without a word is recorded once it is known."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from tests.running import wait_for
from tests.runs.conftest import FakeRun

from muster.board import read_json
from muster.runs import liveness
from muster.runs.liveness import Liveness, settle


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The job ids that Slurm was asked about; it answers CANCELLED."""
    ids: list[str] = []
    monkeypatch.setattr(liveness.client, "job_state", lambda job_id: ids.append(job_id) or "CANCELLED")
    return ids


def test_looking_often_at_a_pending_job_does_not_ask_slurm_often(
    make_run: Callable[..., FakeRun], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Liveness(make_run().submitted(job_id="4711", time=0.0))
    now = [liveness.time.monotonic()]
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now[0])
    for _ in range(1200):  # ten minutes of `muster status --watch`
        now[0] += 0.5
        watch.gone(None)
    assert len(asked) <= 600 / liveness.ASK_SLURM_S


def test_a_job_that_was_cancelled_while_pending_is_recorded_as_ended(
    make_run: Callable[..., FakeRun], asked: list[str]
) -> None:
    run = make_run().submitted(job_id="4711", time=0.0)
    settle(run)
    settle(run)
    assert asked == ["4711"]
    assert read_json(run.attempt(0).outcome) == {"exit_code": 125, "end_reason": "Slurm job 4711 is CANCELLED"}


def test_a_run_that_was_just_submitted_is_left_alone(make_run: Callable[..., FakeRun], asked: list[str]) -> None:
    settle(make_run().submitted(job_id="4711", time=liveness.time.time()))
    assert asked == []


def test_a_job_script_that_has_ended_and_was_not_waited_for_does_not_run() -> None:
    script = subprocess.Popen(["true"])
    try:
        wait_for("its end", lambda: not liveness._exists(script.pid))
        assert liveness._exists(os.getpid())
    finally:
        script.wait()
