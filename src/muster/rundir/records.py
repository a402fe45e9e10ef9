"""Records of the run directory that several programs share: how a run was started, its newest status, its job's end.

A record may be missing, incomplete or damaged by a full disk: readers then return empty values instead of raising.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from muster.rundir.atomic import read_record, write_json
from muster.rundir.paths import AttemptPaths, RunPaths

STATUS_REFRESH_S = 10.0  # a status older than a few of these means that its leader is gone
TIMINGS = ("job_start", "lead_ready", "ray_head_ready", "ray_ready", "driver_start", "driver_end", "ended")


@dataclass(frozen=True)
class Submission:
    """How a run was started (`submission.json`); None where that is not recorded.

    `asked` to `time` is the duration of the submission; a busy slurmctld is slow. `cluster`, `uid` and `script` (the
    submitted file) distinguish the run's jobs from others with the same ids.
    """

    run: str | None = None
    backend: str | None = None  # local | slurm
    kind: str | None = None  # local | sbatch | allocation
    job_id: str | None = None
    job_ids: tuple[str, ...] = ()  # of a chain, in the order in which they run; empty if Muster submitted none
    cluster: str | None = None
    submitted_from: str | None = None  # the cluster of the submitting host
    uid: int | None = None
    script: str | None = None
    host: str | None = None
    pid: int | None = None  # of the job script, if it runs beside `muster run`
    asked: float | None = None
    time: float | None = None

    @property
    def is_batch(self) -> bool:
        """Whether Muster submitted the job with sbatch. Otherwise it runs in an allocation of the user, or locally."""
        return self.kind == "sbatch"


def write_submission(run: RunPaths, submission: Submission) -> None:
    write_json(run.submission, asdict(submission))


def read_submission(run: RunPaths) -> Submission:
    """Return the recorded submission; a value of another type counts as not recorded."""
    record = read_record(run.submission)
    ids = record.get("job_ids")
    return Submission(
        run=_text(record, "run"),
        backend=_text(record, "backend"),
        kind=_text(record, "kind"),
        job_id=_text(record, "job_id"),
        job_ids=tuple(job for job in ids if isinstance(job, str)) if isinstance(ids, list) else (),
        cluster=_text(record, "cluster"),
        submitted_from=_text(record, "submitted_from"),
        uid=_integer(record, "uid"),
        script=_text(record, "script"),
        host=_text(record, "host"),
        pid=_integer(record, "pid"),
        asked=_number(record, "asked"),
        time=_number(record, "time"),
    )


def _text(record: dict[str, Any], name: str) -> str | None:
    value = record.get(name)
    return value if isinstance(value, str) else None


def _integer(record: dict[str, Any], name: str) -> int | None:
    value = record.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(record: dict[str, Any], name: str) -> float | None:
    value = record.get(name)
    return value if isinstance(value, float) else _integer(record, name)


def newest_published(attempt: AttemptPaths) -> dict[str, Any] | None:
    """Return the status of the highest term, never an older one of a fenced leader; None before the first."""
    terms = attempt.terms()
    return (read_record(attempt.status(terms[-1])) or None) if terms else None


def job_end_marks(attempt: AttemptPaths) -> list[str]:
    """Return the recorded steps of the job's end: seen, ended, gone (see `AttemptPaths.job_end`)."""
    try:
        os.listdir(attempt.root)  # a network filesystem may cache that a file did not exist
        with open(attempt.job_end, encoding="ascii", errors="replace") as file:
            return file.read().split()
    except OSError:
        return []
