"""Detect that a run has died without recording its end, or that another attempt follows.

Only this module polls Slurm about the end of a submitted run: after 30 s without an update of its status (before the
first one after 5, 15 and 35 s), and when Slurm's own signal ended an attempt whose job script does not record what
follows.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from muster.errors import BackendError
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.process.log_reader import tail_lines
from muster.process.proctree import read_process
from muster.rundir import AttemptPaths, RunPaths, make_private_dirs, read_record, write_json
from muster.rundir.records import STATUS_REFRESH_S, Submission, newest_published, read_submission
from muster.runs.next_attempt import has_next_attempt, read_next_attempt, script_records_next_attempt
from muster.runs.own_jobs import is_on_this_cluster, list_own_jobs, slurm_jobs
from muster.runs.release import record_job_gone, release
from muster.slurm import client
from muster.slurm.jobs import ENDED, SlurmJobs, cancel_jobs

SLURM_POLL_S = 30.0  # shortest time between two RPCs about one run that has had a leader
FIRST_POLL_S = 5.0  # the same before that, doubled each time: a job may die before it writes anything
REQUEUE_TIMEOUT_S = 30.0  # a requeued job leaves its nodes before Slurm shows it as pending
REQUEUE_POLL_S = 2.0
NEXT_ATTEMPT_TIMEOUT_S = 30.0  # a job script records what follows shortly after the outcome
NEXT_ATTEMPT_POLL_S = 0.1
STATUS_STALE_S = 4 * STATUS_REFRESH_S  # without an update for this long, the leader may be gone
ABANDONED_S = 600.0  # silence of a run that has lost its batch host: longer than any failover or pause of a filesystem
UNKNOWN, UNREACHABLE = "unknown to Slurm", "unreachable"


class RunMonitor:
    """Detects the end of a run that its directory does not show."""

    def __init__(self, run: RunPaths) -> None:
        self._run, self._submission = run, Submission()
        self._decides_itself, self._jobs = script_records_next_attempt(run), slurm_jobs(run)
        self._last_update = self._last_query = time.monotonic()
        self._interval = min(FIRST_POLL_S, SLURM_POLL_S)
        self._updated: Any = None
        self._requeued: AttemptPaths | None = None
        self._knows_submission()

    def poll_dead(self, attempt: AttemptPaths | None) -> str | None:
        """Return why the run is dead; None while it may live. May be called often: Slurm is queried rarely."""
        if not self._knows_submission() or (self._submission.pid is None and not self._query_is_due(attempt)):
            return None
        silent = time.monotonic() - self._last_update
        return self.query_dead(silent, new=silent < SLURM_POLL_S)

    def _knows_submission(self) -> bool:
        """Whether it is known how the run was started, if that was recorded: the filesystem may fail for a while."""
        if self._submission.backend is None:
            try:
                with open(self._run.submission, "rb"):
                    self._submission, self._jobs = read_submission(self._run), slurm_jobs(self._run)
            except FileNotFoundError:
                return True
            except OSError:
                return False
        return True

    def query_dead(self, silent: float = 0.0, new: bool = False) -> str | None:
        """Return why the run is dead, by its local process or by a query to Slurm; None while it may live.

        `silent` is the number of seconds without an update of its status. Slurm may not know a `new` job yet.
        """
        if not self._knows_submission():
            return None
        pid = self._submission.pid
        if pid is not None:
            elsewhere = self._submission.host != os.uname().nodename
            return None if elsewhere or _exists(pid) else f"its job script was killed{self._last_message()}"
        state = self._job_state()
        if state in ENDED or (state == UNKNOWN and not new):
            return f"Slurm job {self._jobs} is {state}{self._missing_files(state)}"
        return self._abandoned(silent) if state == "RUNNING" else None

    def _missing_files(self, state: str) -> str:
        """Return the likely cause of a job that failed before its script made the directory of an attempt."""
        if state != "FAILED" or self._run.newest_attempt() is not None:
            return ""
        where = f"{self._run.root}: the nodes may not see this directory"
        return f", and wrote nothing to {where}; choose one on a filesystem that every node shares with --runs-dir"

    def _last_message(self) -> str:
        """Return what the script or its filesystem says about its end, if anything."""
        try:
            with open(self._run.output_file, "ab") as file:
                file.write(b"\n")
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f": the filesystem of the run directory failed: {error.strerror}"
        last = ["", *(line for line in tail_lines(self._run.output_file, 3) if line)][-1]
        return f": {last.removeprefix('muster: ')}" if last.startswith("muster: ") else ""

    def _abandoned(self, silent: float) -> str | None:
        """Cancel a job whose agents have all died with the batch host, which Slurm does not notice."""
        attempt = self._run.newest_attempt()
        if silent < ABANDONED_S or attempt is None or not attempt.terms():
            return None  # before the first leader publishes, the setup of nodes may take long
        with contextlib.suppress(BackendError):
            own = read_record(attempt.slurm_job).get("job_id")
            if own and client.has_lost_batch_host(self._jobs.only([own])):
                cancel_jobs(self._jobs.only([own]))
                return f"Slurm job {own} lost its batch host, sent no update for {silent:.0f} s, and was cancelled"
        return None

    def _query_is_due(self, attempt: AttemptPaths | None) -> bool:
        """Whether SLURM_POLL_S have passed since the last update of the status and since the last query."""
        now = time.monotonic()
        if now - self._last_update < self._interval or now - self._last_query < self._interval:
            return False
        updated = (newest_published(attempt) or {}).get("updated") if attempt else None
        if updated != self._updated:
            self._updated, self._last_update, self._interval = updated, now, SLURM_POLL_S
            return False
        self._last_query, self._interval = now, min(2 * self._interval, SLURM_POLL_S)
        return True

    def will_continue(self, attempt: AttemptPaths) -> bool:
        """Whether another attempt follows one that has an outcome: by a requeue, or the next job of a chain."""
        if self._requeued == attempt or has_next_attempt(attempt):
            return True
        if self._decides_itself and self._wait_for_decision(attempt):
            return has_next_attempt(attempt)
        outcome = read_record(attempt.outcome)
        silent_script = self._decides_itself and outcome.get("exit_code") != 0
        if not self._submission.is_batch or not (outcome.get("signalled") or silent_script):
            return False
        if silent_script:
            release(self._run, patient=False)  # the next job of the chain waits for this one
        deadline = time.monotonic() + REQUEUE_TIMEOUT_S
        while (state := self._job_state()) in ("RUNNING", "COMPLETING") and time.monotonic() < deadline:
            time.sleep(REQUEUE_POLL_S)
        if state in ("PENDING", "REQUEUED", "CONFIGURING"):
            self._requeued = attempt
        return self._requeued == attempt

    def _wait_for_decision(self, attempt: AttemptPaths) -> bool:
        """Wait until the job script has recorded what follows; False if it does not, since it was killed."""
        deadline = time.monotonic() + NEXT_ATTEMPT_TIMEOUT_S
        while not (recorded := bool(read_next_attempt(attempt))) and time.monotonic() < deadline:
            time.sleep(NEXT_ATTEMPT_POLL_S)
        return recorded

    def _job_state(self) -> str:
        try:
            state = client.state_of(self._jobs, list_own_jobs(self._run))
            return state or (UNKNOWN if is_on_this_cluster(self._run) else UNREACHABLE)
        except BackendError:
            return UNREACHABLE


def finalize_dead(run: RunPaths) -> SlurmJobs | None:
    """Record the end of a run that died without doing so, and release the job of one that has ended.

    Returns the cancelled jobs of a finished run. Queries Slurm at most once, unless a job is left over.
    """
    attempt, submission = run.newest_attempt(), read_submission(run)
    if attempt is not None and os.path.exists(attempt.outcome) and not has_next_attempt(attempt):
        return release(run, patient=False)
    updated = (newest_published(attempt) or {}).get("updated", 0.0) if attempt else 0.0
    silent = time.time() - max(updated, submission.time or 0.0)
    if silent < STATUS_STALE_S:
        return None
    reason = RunMonitor(run).query_dead(silent)
    if reason is not None:
        record_silent_end(run, reason)
    return None


def record_silent_end(run: RunPaths, reason: str) -> None:
    """Record the end of a run that could not do so itself, with the exit code that Slurm has, else 125."""
    code = None
    with contextlib.suppress(BackendError):
        jobs = slurm_jobs(run)
        code = client.exit_code(jobs) if jobs.ids else None
    record_end(run, INFRASTRUCTURE_FAILED if code is None else code, reason)
    attempt = run.newest_attempt()
    if attempt is not None:
        record_job_gone(attempt)


def record_end(run: RunPaths, exit_code: int, reason: str) -> None:
    """Write an outcome for the attempt that has none, or for the next one, which never began."""
    attempt = run.newest_attempt() or run.attempt(0)
    if os.path.exists(attempt.outcome) or has_next_attempt(attempt):
        attempt = run.attempt(attempt.number + 1)
    make_private_dirs(attempt.root)
    write_json(attempt.next_attempt, {"again": "none", "cause": "", "note": ""})
    write_json(attempt.outcome, {"exit_code": exit_code, "end_reason": reason})


def _exists(pid: int) -> bool:
    """Whether the process lives. A zombie does not: its parent may be the `muster run` that polls here."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's process, which /proc may hide
    return read_process(pid) is not None
