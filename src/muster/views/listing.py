"""A run in one row of a list: from its small files alone, since there may be hundreds."""

from __future__ import annotations

import os
from typing import Any

from muster.rundir import RunPaths, read_record
from muster.rundir.redaction import redact_words
from muster.runs.status import ENDED_STATES, read_status
from muster.views.phases import Phase
from muster.views.record import moment, record, records, words
from muster.views.sanitize import plain


def entry(run: RunPaths, now: float) -> dict[str, Any]:
    """State, size, command and a small bar: how long it was pending, coming up, at work, and ending (in ms)."""
    status, job, submission = read_status(run), read_record(run.job), read_record(run.submission)
    asked = moment(submission.get("asked")) or moment(submission.get("time")) or _written(run.job)
    timings = record(status.get("timings"))
    live = words(status.get("state")) not in ENDED_STATES
    end = now if live else moment(timings.get("ended")) or moment(status.get("updated")) or asked
    bar, at = [], asked
    for phase, until in [*_ends(status, timings), (Phase.FINISHING, end)]:
        until = max(at, end if until is None else until)
        bar.append([phase.value, round(1000 * (until - at))])
        at = until
    command = [word for word in job.get("command") or [] if isinstance(word, str)]
    shown: dict[str, Any] = plain(
        {
            "run": run.run_id,
            "state": words(status.get("state")),
            "live": live,
            "nodes": job.get("nodes") if isinstance(job.get("nodes"), int) else None,
            "job_id": words(status.get("job_id")),
            "exit_code": status.get("exit_code") if isinstance(status.get("exit_code"), int) else None,
            "asked": asked,
            "took": round(1000 * max(0.0, end - asked)),
            "bar": [part for part in bar if part[1]],
            "command": " ".join(redact_words(command))[:200],
        }
    )
    return shown


def _ends(status: dict[str, Any], timings: dict[str, Any]) -> list[tuple[Phase, float | None]]:
    """What the small bar is made of, and when each part ended: cycles before the newest one count as lost."""
    cycles = records(status.get("cycles"))
    lost = [(Phase.LOST, moment(cycles[-1].get("start")))] if len(cycles) > 1 else []
    names = ((Phase.LAUNCHING, "driver_start"), (Phase.DRIVER, "driver_end"))
    rest = [(phase, moment(timings.get(name))) for phase, name in names]
    return [(Phase.PENDING, moment(timings.get("job_start"))), *lost, *rest]


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
