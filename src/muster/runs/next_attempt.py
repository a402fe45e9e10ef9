"""The decision whether another attempt follows an ended one, as its job script recorded it."""

from __future__ import annotations

from typing import Any

from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.rundir.records import read_submission

NEXT_ATTEMPT_KINDS = ("requeue", "chain")


def read_next_attempt(attempt: AttemptPaths | None) -> dict[str, Any]:
    """Return `again` (requeue, chain or none), `cause` and `note`; empty before they are recorded."""
    return read_record(attempt.next_attempt) if attempt is not None else {}


def has_next_attempt(attempt: AttemptPaths | None) -> bool:
    """Whether the job script has recorded that another attempt follows."""
    return read_next_attempt(attempt).get("again") in NEXT_ATTEMPT_KINDS


def script_records_next_attempt(run: RunPaths) -> bool:
    """Whether the job script records what follows: it does for jobs that may be requeued or chained."""
    job = read_record(run.job)
    requeued = job.get("requeue_on") or "requeue" in job.get("sbatch", {})
    return read_submission(run).is_batch and bool(requeued or job.get("chain", 1) > 1)


def next_attempt_message(next_attempt: dict[str, Any]) -> str | None:
    """Describe the decision for humans; None if there is nothing to report."""
    cause, note = next_attempt.get("cause") or "", next_attempt.get("note") or ""
    because = f" after {cause}" if cause not in ("", "slurm") else ""
    if next_attempt.get("again") == "requeue":
        return f"put back into the queue{because}; Slurm lets it begin again in about two minutes"
    refused = f" (not requeued: {note})" if note else ""
    if next_attempt.get("again") == "chain":
        return f"the next job of the chain follows{because}{refused}"
    return f"not requeued{because}: {note}" if note else None
