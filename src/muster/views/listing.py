"""One row per run for the list of runs, read from small files only because there may be hundreds of runs."""

from __future__ import annotations

from typing import Any

from muster.rundir import RunPaths, read_record, written_at
from muster.rundir.records import read_submission
from muster.rundir.redaction import redact_words
from muster.runs.status import ENDED_STATES, read_status
from muster.views.json_values import as_dict, as_dicts, as_text, as_time
from muster.views.phases import Phase
from muster.views.sanitize import plain


def entry(run: RunPaths, now: float) -> dict[str, Any]:
    """Return state, size, command and a bar: milliseconds pending, starting, running the driver, and finishing."""
    status, job, submission = read_status(run), read_record(run.job), read_submission(run)
    asked = as_time(submission.asked) or as_time(submission.time) or written_at(run.job) or 0.0
    timings = as_dict(status.get("timings"))
    live = as_text(status.get("state")) not in ENDED_STATES
    end = now if live else as_time(timings.get("ended")) or as_time(status.get("updated")) or asked
    bar, at = [], asked
    for phase, until in [*_bar_parts(status, timings), (Phase.FINISHING, end)]:
        until = max(at, end if until is None else until)
        bar.append([phase.value, round(1000 * (until - at))])
        at = until
    command = [word for word in job.get("command") or [] if isinstance(word, str)]
    shown: dict[str, Any] = plain(
        {
            "run": run.run_id,
            "state": as_text(status.get("state")),
            "live": live,
            "nodes": job.get("nodes") if isinstance(job.get("nodes"), int) else None,
            "job_id": as_text(status.get("job_id")),
            "exit_code": status.get("exit_code") if isinstance(status.get("exit_code"), int) else None,
            "asked": asked,
            "took": round(1000 * max(0.0, end - asked)),
            "bar": [part for part in bar if part[1]],
            "command": " ".join(redact_words(command))[:200],
        }
    )
    return shown


def _bar_parts(status: dict[str, Any], timings: dict[str, Any]) -> list[tuple[Phase, float | None]]:
    """Return the parts of the bar and their ends; cycles before the newest one count as lost."""
    cycles = as_dicts(status.get("cycles"))
    lost = [(Phase.LOST, as_time(cycles[-1].get("start")))] if len(cycles) > 1 or status.get("cycles_dropped") else []
    names = ((Phase.LAUNCHING, "driver_start"), (Phase.DRIVER, "driver_end"))
    rest = [(phase, as_time(timings.get(name))) for phase, name in names]
    return [(Phase.PENDING, as_time(timings.get("job_start"))), *lost, *rest]
