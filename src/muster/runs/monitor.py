"""Whether more will come of a run: it may have ended without a word, or be about to begin again.

The only place that asks Slurm about a submitted run: after 30 s without a word from it, and when Slurm's own signal
ended an attempt whose job script does not say what follows.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from muster.errors import BackendError
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.process.proctree import read_process
from muster.rundir import AttemptPaths, RunPaths, read_json, read_record, write_json
from muster.runs.next_attempt import decides_itself, is_followed, read_next_attempt, slurm_jobs
from muster.runs.release import is_here, own_jobs, record_gone, release
from muster.runs.status import newest_published
from muster.slurm import client
from muster.slurm.jobs import ENDED, SlurmJobs, cancel_jobs

ASK_SLURM_S = 30.0
REQUEUE_S = 30.0  # how long a job may take to leave the nodes before Slurm shows it pending again
REQUEUE_LOOK_S = 2.0
NEXT_ATTEMPT_S = 30.0  # how long a job script may take, after the outcome, to say what follows
NEXT_ATTEMPT_LOOK_S = 0.1
SILENT_S = 40.0  # a live lead publishes every 10 s
ABANDONED_S = 600.0  # silence of a run that has lost its batch host: longer than any succession or filesystem's pause
UNKNOWN, UNREACHABLE = "unknown to Slurm", "not to be had"


class RunMonitor:
    """What the run's directory alone does not tell."""

    def __init__(self, run: RunPaths) -> None:
        self._run, self._submission = run, read_json(run.submission) or {}
        self._decides_itself, self._jobs = decides_itself(run), slurm_jobs(run)
        self._heard = self._asked = time.monotonic()
        self._updated: Any = None
        self._requeued: AttemptPaths | None = None

    def gone(self, attempt: AttemptPaths | None) -> str | None:
        """Why nothing more will come; None while something may. May be called often: Slurm is asked rarely."""
        if self._submission.get("pid") is None and not self._time_to_ask(attempt):
            return None
        return self.ended(time.monotonic() - self._heard)

    def ended(self, silent: float = 0.0) -> str | None:
        """How the run is known to have ended, by its process here or by Slurm, which is asked now; else None.

        `silent` is for how many seconds nothing was heard of it.
        """
        pid = self._submission.get("pid")
        if pid is not None:
            elsewhere = self._submission["host"] != os.uname().nodename
            return None if elsewhere or _exists(pid) else "its job script was killed"
        state = self._job_state()
        if state in ENDED or state == UNKNOWN:
            return f"Slurm job {self._jobs} is {state}"
        return self._abandoned(silent) if state == "RUNNING" else None

    def _abandoned(self, silent: float) -> str | None:
        """Cancel a job of which nothing is left: every agent has died with the batch host, and Slurm does not know."""
        attempt = self._run.newest_attempt()
        if silent < ABANDONED_S or attempt is None or not attempt.terms():
            return None  # nodes may take long to be set up before the first leader publishes
        with contextlib.suppress(BackendError):
            own = read_record(attempt.slurm_job).get("job_id")
            if own and client.has_lost_batch_host(self._jobs.only([own])):
                cancel_jobs(self._jobs.only([own]))
                how = f"nothing came from the run for {silent:.0f} s after that"
                return f"Slurm job {own} lost its batch host; {how}, and it was cancelled"
        return None

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
        silent_script = self._decides_itself and outcome.get("exit_code") != 0
        if self._submission.get("kind") != "sbatch" or not (outcome.get("signalled") or silent_script):
            return False
        if silent_script:
            release(self._run, patient=False)  # what waits behind this job can begin then
        deadline = time.monotonic() + REQUEUE_S
        while (state := self._job_state()) in ("RUNNING", "COMPLETING") and time.monotonic() < deadline:
            time.sleep(REQUEUE_LOOK_S)
        if state in ("PENDING", "REQUEUED", "CONFIGURING"):
            self._requeued = attempt
        return self._requeued == attempt

    def _decided(self, attempt: AttemptPaths) -> bool:
        """Wait for the job script's word on what follows; a moment, unless it was killed."""
        deadline = time.monotonic() + NEXT_ATTEMPT_S
        while not (said := bool(read_next_attempt(attempt))) and time.monotonic() < deadline:
            time.sleep(NEXT_ATTEMPT_LOOK_S)
        return said

    def _job_state(self) -> str:
        try:
            state = client.state_of(self._jobs, own_jobs(self._run))
            return state or (UNKNOWN if is_here(self._run) else UNREACHABLE)
        except BackendError:
            return UNREACHABLE


def finalize_dead(run: RunPaths) -> SlurmJobs | None:
    """Record the end of a run that ended without a word, and release the job of one that is over.

    Asks Slurm at most once, unless a job is left; returns what was cancelled of a finished run.
    """
    attempt, submission = run.newest_attempt(), read_json(run.submission) or {}
    if attempt is not None and os.path.exists(attempt.outcome) and not is_followed(attempt):
        return release(run, patient=False)
    updated = (newest_published(attempt) or {}).get("updated", 0.0) if attempt else 0.0
    silent = time.time() - max(updated, submission.get("time", 0.0))
    if silent < SILENT_S:
        return None
    reason = RunMonitor(run).ended(silent)
    if reason is not None:
        record_silent_end(run, reason)
    return None


def record_silent_end(run: RunPaths, reason: str) -> None:
    """The end of a run that could not record it, as when its directory had vanished from nodes: Slurm has the code."""
    code = None
    with contextlib.suppress(BackendError):
        jobs = slurm_jobs(run)
        code = client.exit_code(jobs) if jobs.ids else None
    record_end(run, INFRASTRUCTURE_FAILED if code is None else code, reason)
    attempt = run.newest_attempt()
    if attempt is not None:
        record_gone(attempt)


def record_end(run: RunPaths, exit_code: int, reason: str) -> None:
    """An outcome in the place of the run's own: of the attempt that has none, or of the one that should have come."""
    attempt = run.newest_attempt() or run.attempt(0)
    if os.path.exists(attempt.outcome) or is_followed(attempt):
        attempt = run.attempt(attempt.number + 1)
    os.makedirs(attempt.root, exist_ok=True)
    write_json(attempt.next_attempt, {"again": "none", "cause": "", "note": ""})
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
