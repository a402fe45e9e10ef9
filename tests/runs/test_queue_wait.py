"""The reason why a job waits in the queue: asked rarely, reported when it changes."""

from __future__ import annotations

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.runs import queue_wait
from muster.runs.queue_wait import FIRST_QUERY_S, QUERY_INTERVAL_S, QueueWait

SHOWN = "JobId=4711 JobName=x JobState={state} Reason={reason} Dependency=(null)"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test changes."""
    now = [1000.0]
    monkeypatch.setattr(queue_wait.time, "monotonic", lambda: now[0])
    return now


def test_a_reason_is_reported_once_until_it_changes(run: FakeRun, fake_slurm: FakeSlurm, now: list[float]) -> None:
    wait = QueueWait(run.submitted(job_id="4711"))
    fake_slurm.shows(SHOWN.format(state="PENDING", reason="Priority"))
    assert wait.poll() is None and fake_slurm.calls == []
    now[0] += FIRST_QUERY_S
    assert wait.poll() == "Slurm job 4711 is pending: Priority"
    assert wait.poll() is None and len(fake_slurm.called("scontrol")) == 1
    now[0] += QUERY_INTERVAL_S
    assert wait.poll() is None and len(fake_slurm.called("scontrol")) == 2
    fake_slurm.shows(SHOWN.format(state="PENDING", reason="Resources"))
    now[0] += QUERY_INTERVAL_S
    assert wait.poll() == "Slurm job 4711 is pending: Resources"


def test_a_job_that_runs_waits_for_nothing(run: FakeRun, fake_slurm: FakeSlurm, now: list[float]) -> None:
    wait = QueueWait(run.submitted(job_id="4711"))
    fake_slurm.shows(SHOWN.format(state="RUNNING", reason="None"))
    now[0] += FIRST_QUERY_S
    assert wait.poll() is None


def test_a_local_run_is_in_no_queue(run: FakeRun, fake_slurm: FakeSlurm, now: list[float]) -> None:
    wait = QueueWait(run)
    now[0] += FIRST_QUERY_S
    assert wait.poll() is None and fake_slurm.calls == []
