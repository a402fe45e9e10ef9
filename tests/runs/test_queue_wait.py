"""The reason why a job waits in the queue: asked rarely, reported when it changes."""

from __future__ import annotations

import time

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.runs import queue_wait
from muster.runs.queue_wait import ANSWER_VALID_S, FIRST_QUERY_S, QUERY_INTERVAL_S, QueueWait, pending_message

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


def starting(minutes: float) -> str:
    """Return scontrol's text of a pending job that is expected to start in so many minutes."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 60 * minutes))
    return f"{SHOWN.format(state='PENDING', reason='Resources')} StartTime={when} EndTime=Unknown"


def test_the_expected_start_is_reported_and_only_large_changes_of_it(
    run: FakeRun, fake_slurm: FakeSlurm, now: list[float]
) -> None:
    wait = QueueWait(run.submitted(job_id="4711"))
    told = []
    for minutes in (60, 62, 120):
        fake_slurm.shows(starting(minutes))
        now[0] += QUERY_INTERVAL_S
        told.append(wait.poll())
    assert told[0] is not None and told[0].startswith("Slurm job 4711 is pending: Resources; expected start 2")
    assert told[1] is None and told[2] is not None and told[2] != told[0]


@pytest.mark.parametrize("start", ["Unknown", "2020-01-01T00:00:00"])
def test_a_start_that_is_unknown_or_past_is_left_out(start: str, run: FakeRun, fake_slurm: FakeSlurm) -> None:
    fake_slurm.shows(f"{SHOWN.format(state='PENDING', reason='Priority')} StartTime={start} EndTime=Unknown")
    assert pending_message(run.submitted(job_id="4711")) == "Slurm job 4711 is pending: Priority"


def test_many_readers_query_slurm_once_in_half_a_minute(
    run: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.submitted(job_id="4711")
    fake_slurm.shows(SHOWN.format(state="PENDING", reason="Priority"))
    assert {pending_message(run) for _ in range(20)} == {"Slurm job 4711 is pending: Priority"}
    assert len(fake_slurm.called("scontrol")) == 1 and ANSWER_VALID_S == 30.0
    later = time.time() + ANSWER_VALID_S
    monkeypatch.setattr(queue_wait.time, "time", lambda: later)
    fake_slurm.shows(SHOWN.format(state="RUNNING", reason="None"))
    assert pending_message(run) is None and len(fake_slurm.called("scontrol")) == 2


def test_slurm_that_does_not_answer_is_not_asked_again_at_once(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    fake_slurm.refuses("scontrol: error: no controller")
    run.submitted(job_id="4711")
    assert [pending_message(run) for _ in range(3)] == [None] * 3
    assert len(fake_slurm.calls) <= 1


def test_a_local_run_is_not_pending_in_slurm(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    assert pending_message(run) is None and fake_slurm.calls == []
