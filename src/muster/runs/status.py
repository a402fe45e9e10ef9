"""Read the status of a live, finished or broken run from its directory."""

from __future__ import annotations

import os
import signal
from typing import Any

from muster.exit_codes import BY_SIGNAL
from muster.process.log_reader import tail_lines
from muster.rundir import AttemptPaths, RunPaths, launcher_log, read_record
from muster.rundir.hosts import host_names
from muster.rundir.records import TIMINGS, newest_published, read_submission
from muster.rundir.redaction import scrubbed
from muster.runs.leader_wait import leader_wait_message
from muster.runs.next_attempt import has_next_attempt, read_next_attempt

ENDED_STATES = ("succeeded", "failed", "stopped")


def read_status(run: RunPaths) -> dict[str, Any]:
    """Return the status that `muster status --json` prints: of the newest attempt and its highest term."""
    submission = read_submission(run)
    status: dict[str, Any] = {
        "run": run.run_id,
        "job_id": submission.job_id,
        "backend": submission.backend,
        "state": "pending",
        "end_reason": None,
        "waiting": None,
        "attempt": None,
        "cycle": None,
        "cycles": [],
        "cycles_dropped": 0,
        "nodes": [],
        "driver": {"state": "waiting", "exit_code": None},
        "ray": None,
        "guests": [],
        "timings": dict.fromkeys(TIMINGS),
        "error": None,
        "sequel": None,
        "run_dir": run.root,
    }
    attempt = run.newest_attempt()
    if attempt is None:
        return status
    status.update(
        attempt=attempt.number, cycle=0, state="gathering", exit_code=None, waiting=leader_wait_message(attempt)
    )
    status.update(newest_published(attempt) or {})
    outcome, status["sequel"] = read_record(attempt.outcome), read_next_attempt(attempt) or None
    code = outcome.get("exit_code")
    if not isinstance(code, int):
        return status
    status["exit_code"] = code
    if status["state"] not in ENDED_STATES:
        # No leader has published the end, or that is not visible yet: use the outcome, which has less detail.
        status.update(state=state_of(code), end_reason=outcome.get("end_reason"))
        status["error"] = status["error"] or scrubbed(_early_error(attempt))
    if status["state"] == "stopped":
        status["error"] = None  # the tasks that the stop ended have not failed
    if has_next_attempt(attempt):  # the attempt has ended, the run has not
        sequel = {**status["sequel"], "end_reason": outcome.get("end_reason")}
        status.update(state="pending", exit_code=None, end_reason=None, sequel=sequel)
    return status


def state_of(code: int) -> str:
    """Return the state that follows from an exit code; 128+n of the signals that request a stop means stopped."""
    if code == 0:
        return "succeeded"
    return "stopped" if code - BY_SIGNAL in (signal.SIGINT, signal.SIGTERM) else "failed"


def _early_error(attempt: AttemptPaths) -> dict[str, Any] | None:
    """Return the first failure in the launcher's log, for attempts whose leader recorded no error."""
    led = os.path.exists(attempt.leader())
    phase = (newest_published(attempt) or {}).get("state", "start")
    # If there was a leader, its own end comes first: those of other nodes follow from it.
    for end in sorted(
        launcher_log.read(attempt.steps_log, host_names(attempt)), key=lambda end: end.node_index != 0 or not led
    ):
        tail = tail_lines(attempt.node_log(end.node_index)) if end.node_index is not None else []
        return {"rank": end.node_index, "host": end.host, "phase": phase, "reason": end.reason, "log_tail": tail}
    tail = launcher_log.explaining_lines(tail_lines(attempt.steps_log, 6))
    return {"rank": None, "host": None, "phase": "start", "reason": tail[-1], "log_tail": tail} if tail else None
