"""The part of a cycle in the driver's log, which has the output of all cycles of an attempt."""

from __future__ import annotations

from dataclasses import dataclass

from muster.rundir import AttemptPaths
from muster.rundir.records import newest_published


@dataclass(frozen=True)
class CycleOutput:
    """Positions in the driver's log; `end` is None while no later cycle has begun."""

    start: int
    end: int | None


def cycle_output(attempt: AttemptPaths, cycle: int | None) -> CycleOutput | None:
    """Return the part of a cycle (None: of the newest one); None if its driver has not begun, or is not known any more.

    The part ends with the line that says why the next cycle began.
    """
    entries = (newest_published(attempt) or {}).get("cycles") or []
    starts = {entry["cycle"]: entry.get("log_start") for entry in entries if entry.get("log_start") is not None}
    if cycle is None:
        cycle = max(starts, default=0)
    if cycle not in starts:
        return None
    later = [start for number, start in starts.items() if number > cycle]
    return CycleOutput(starts[cycle], min(later, default=None))
