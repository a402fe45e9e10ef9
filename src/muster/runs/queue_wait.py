"""Describe why a submitted job waits in the queue: that must not look like a hang."""

from __future__ import annotations

import time

from muster.errors import BackendError
from muster.rundir import RunPaths
from muster.rundir.records import read_submission
from muster.runs.own_jobs import slurm_jobs
from muster.slurm import client

FIRST_QUERY_S = 5.0  # most jobs on an idle cluster have begun by then
QUERY_INTERVAL_S = 60.0


class QueueWait:
    """Follows one run until its first attempt begins. Only jobs that Muster submitted wait in a queue."""

    def __init__(self, run: RunPaths) -> None:
        self._jobs = slurm_jobs(run) if read_submission(run).is_batch else None
        self._due = time.monotonic() + FIRST_QUERY_S
        self._reason: str | None = None

    def poll(self) -> str | None:
        """Return a message if Slurm gives a new reason, else None. May be called often: Slurm is queried rarely."""
        now = time.monotonic()
        if self._jobs is None or now < self._due:
            return None
        self._due = now + QUERY_INTERVAL_S
        try:
            reason = client.pending_reason(self._jobs)
        except BackendError:
            return None
        if reason is None or reason == self._reason:
            return None
        self._reason = reason
        return f"Slurm job {self._jobs} is pending: {reason}"
