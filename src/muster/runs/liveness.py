"""Whether more will come of a run: it may have ended without a word, or be about to begin again.

The only place that asks Slurm about a submitted run: after 30 s without a word from it, and when Slurm's own signal
ended an attempt whose job script does not say what follows.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from muster.backends.errors import BackendError
from muster.backends.slurm import client
from muster.board import AttemptPaths, RunPaths, read_json, read_record, write_json
from muster.process.tree import read_process
from muster.rendezvous.protocol import INFRASTRUCTURE_FAILED
from muster.runs.sequel import decides_itself, is_followed, job_ids, read_sequel
from muster.runs.status import newest_published

ASK_SLURM_S = 30.0
REQUEUE_S = 30.0  # how long a job may take to leave the nodes before Slurm shows it pending again
REQUEUE_LOOK_S = 2.0
SEQUEL_S = 30.0  # how long a job script may take, after the outcome, to say what follows
SEQUEL_LOOK_S = 0.1
SILENT_S = 40.0  # a live lead publishes every 10 s


class Liveness:
    """What the run's directory alone does not tell."""

    def __init__(self, run: RunPaths) -> None:
        self._submission = read_json(run.submission) or {}
        self._decides_itself, self._job_ids = decides_itself(run), job_ids(run)
        self._heard = self._asked = time.monotonic()
        self._updated: Any = None
        self._requeued: AttemptPaths | None = None

    def gone(self, attempt: AttemptPaths | None) -> str | None:
        """Why nothing more will come; None while something may. May be called often: Slurm is asked rarely."""
        if self._submission.get("pid") is None and not self._time_to_ask(attempt):
            return None
        return self.ended()

    def ended(self) -> str | None:
        """How the run is known to have ended, by its process here or by Slurm, which is asked now; else None."""
        pid = self._submission.get("pid")
        if pid is not None:
            elsewhere = self._submission["host"] != os.uname().nodename
            return None if elsewhere or _exists(pid) else "its job script was killed"
        jobs, state = ", ".join(self._job_ids), self._job_state()
        return f"Slurm job {jobs} is {state}" if state in client.ENDED or state == "unknown to Slurm" else None

    def _time_to_ask(self, attempt: AttemptPaths | None) -> bool:
        """After a while without a word from the run, and not again for a while."""
        now = time.monotonic()
        if now - self._heard < ASK_SLURM_S or now - self._asked < ASK_SLURM_S:
            return False
        updated = (newest_published(attempt) or {}).get("updated") if attempt else None
        if updated != self._updated:
            self._updated, self._heard = updated, now
            return False
        self._asked = now
        return True

    def goes_on(self, attempt: AttemptPaths) -> bool:
        """Whether an attempt that has an outcome is followed by another: a requeue, or the next job of a chain."""
        if self._requeued == attempt or is_followed(attempt):
            return True
        if self._decides_itself and self._decided(attempt):
            return is_followed(attempt)
        outcome = read_json(attempt.outcome) or {}
        if self._submission.get("kind") != "sbatch" or not outcome.get("signalled"):
            return False
        deadline = time.monotonic() + REQUEUE_S
        while (state := self._job_state()) in ("RUNNING", "COMPLETING") and time.monotonic() < deadline:
            time.sleep(REQUEUE_LOOK_S)
        if state in ("PENDING", "REQUEUED", "CONFIGURING"):
            self._requeued = attempt
        return self._requeued == attempt

    def _decided(self, attempt: AttemptPaths) -> bool:
        """Wait for the job script's word on what follows; a moment, unless it was killed."""
        deadline = time.monotonic() + SEQUEL_S
        while not (said := bool(read_sequel(attempt))) and time.monotonic() < deadline:
            time.sleep(SEQUEL_LOOK_S)
        return said

    def _job_state(self) -> str:
        jobs = ",".join(self._job_ids)
        try:
            return (client.job_state(jobs) if jobs else None) or "unknown to Slurm"
        except BackendError:
            return "not to be had"


def settle(run: RunPaths) -> None:
    """Record the end of a run that ended without a word, so that nobody takes it for live; asks Slurm at most once."""
    attempt, submission = run.newest_attempt(), read_json(run.submission) or {}
    if attempt is not None:
        end_left_job(attempt)
    if attempt is not None and os.path.exists(attempt.outcome) and not is_followed(attempt):
        return
    updated = (newest_published(attempt) or {}).get("updated", 0.0) if attempt else 0.0
    if time.time() - max(updated, submission.get("time", 0.0)) < SILENT_S:
        return
    reason = Liveness(run).ended()
    if reason is not None:
        record_silent_end(run, reason)


def end_left_job(attempt: AttemptPaths) -> None:
    """Free the nodes of a run that is over, whose batch host is gone, and whose nodes could not do it themselves."""
    job = read_record(attempt.job_left).get("job_id")
    if not isinstance(job, str):
        return
    with contextlib.suppress(BackendError, OSError):
        client.cancel(job)
        os.unlink(attempt.job_left)


def record_silent_end(run: RunPaths, reason: str) -> None:
    """The end of a run that could not record it, as when its directory had vanished from nodes: Slurm has the code."""
    code = None
    with contextlib.suppress(BackendError):
        ids = job_ids(run)
        code = client.exit_code(ids[-1]) if ids else None
    record_end(run, INFRASTRUCTURE_FAILED if code is None else code, reason)


def record_end(run: RunPaths, exit_code: int, reason: str) -> None:
    """An outcome in the place of the run's own: of the attempt that has none, or of the one that should have come."""
    attempt = run.newest_attempt() or run.attempt(0)
    if os.path.exists(attempt.outcome) or is_followed(attempt):
        attempt = run.attempt(attempt.number + 1)
    os.makedirs(attempt.root, exist_ok=True)
    write_json(attempt.sequel, {"again": "none", "cause": "", "note": ""})
    write_json(attempt.outcome, {"exit_code": exit_code, "end_reason": reason})


def _exists(pid: int) -> bool:
    """A zombie does not: its parent may be a `muster run` that follows it, and waits for this very word."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's, which /proc may hide
    return read_process(pid) is not None
