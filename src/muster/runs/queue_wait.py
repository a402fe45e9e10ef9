"""Describe why a submitted job waits in the queue, and until when: that must not look like a hang."""

from __future__ import annotations

import contextlib
import time

from muster.errors import BackendError
from muster.rundir import RunPaths, read_record, write_json
from muster.rundir.records import read_submission
from muster.runs.own_jobs import slurm_jobs
from muster.slurm import client
from muster.slurm.client import PendingJob
from muster.slurm.jobs import SlurmJobs

FIRST_QUERY_S = 5.0  # most jobs on an idle cluster have begun by then
QUERY_INTERVAL_S = 60.0
ANSWER_VALID_S = 30.0  # all `muster status` of a run together query Slurm once in this time
START_CHANGE_S = 600.0  # Slurm corrects its estimates all the time: a smaller change of the start is not reported


class QueueWait:
    """Follows one run until its first attempt begins. Only jobs that Muster submitted wait in a queue."""

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._jobs = slurm_jobs(run) if read_submission(run).is_batch else None
        self._due = time.monotonic() + FIRST_QUERY_S
        self._reported: PendingJob | None = None

    def poll(self) -> str | None:
        """Return a message if Slurm gives a new reason or start, else None. May be called often."""
        now = time.monotonic()
        if self._jobs is None or now < self._due:
            return None
        self._due = now + QUERY_INTERVAL_S
        try:
            pending = client.pending_job(self._jobs)
        except BackendError:
            return None
        text = _message(self._jobs, pending)
        _record(self._run, text)
        if pending is None or not _is_news(pending, self._reported):
            return None
        self._reported = pending
        return text


def pending_message(run: RunPaths) -> str | None:
    """Return why the run's job is pending, and its expected start; None if it is not known.

    Slurm is queried if the last answer in the run directory is older than ANSWER_VALID_S.
    """
    jobs = slurm_jobs(run)
    if not read_submission(run).is_batch or not jobs.ids:
        return None
    last = read_record(run.queue)
    if 0 <= time.time() - (last.get("time") or 0.0) < ANSWER_VALID_S:
        recorded: str | None = last.get("text")
        return recorded
    text = None
    with contextlib.suppress(BackendError):
        text = _message(jobs, client.pending_job(jobs))
    _record(run, text)
    return text


def _record(run: RunPaths, text: str | None) -> None:
    """Write the answer for other readers; a reader of another user's run, or on a full disk, cannot."""
    with contextlib.suppress(OSError):
        write_json(run.queue, {"time": time.time(), "text": text})


def _message(jobs: SlurmJobs, pending: PendingJob | None) -> str | None:
    if pending is None:
        return None
    start = pending.start if pending.start is not None and pending.start > time.time() else None
    expected = f"; expected start {time.strftime('%Y-%m-%d %H:%M', time.localtime(start))}" if start else ""
    return f"Slurm job {jobs} is pending: {pending.reason}{expected}"


def _is_news(pending: PendingJob, reported: PendingJob | None) -> bool:
    """Return whether the reason is another one, or the start is now known or has moved by START_CHANGE_S."""
    if reported is None or pending.reason != reported.reason:
        return True
    if pending.start is None or reported.start is None:
        return pending.start is not None
    return abs(pending.start - reported.start) >= START_CHANGE_S
