"""Whether the driver made progress in a cycle: a limit of cycles without progress ends the run.

the driver                        a cycle in which there was progress
calls muster.beat(step=...)       a step higher than any cycle before it had reached
calls muster.beat()               it was called
never calls it                    it ran for 10 minutes
"""

from __future__ import annotations

import os

SILENT_PROGRESS_S = 600.0  # a driver that never calls beat() has made progress after this time
NEVER = (None, 0)


class ProgressTracker:
    """Polled regularly, off the event loop. Times are arguments, so that tests need not wait."""

    def __init__(self, beat: str) -> None:
        self._path = beat
        self._reached: int | None = None  # the highest step seen
        self._previous: int | None = None  # the highest step of the cycles before
        self._mark: object = None
        self._cycle, self._since = 0, 0.0
        self._beats = False  # whether beat() was called in any cycle
        self._reports = 0  # by the nodes of a gang
        self._reported: int | None = None  # the highest step in them

    def on_beat(self, step: int | None) -> None:
        """Handle a node's report of a beat() call; `step` is the highest step on that node."""
        self._reports, self._reported = self._reports + 1, _higher(self._reported, step)

    def begin(self, cycle: int, now: float) -> None:
        """Begin a cycle, before its driver starts."""
        self._mark, step = self._read()
        self._beats = self._beats or self._mark != NEVER
        self._previous = self._reached = _higher(self._reached, step)
        self._cycle, self._since = cycle, now

    def poll(self, now: float) -> int | None:
        """Return the current cycle if it has made progress, else None."""
        mark, step = self._read()
        if mark == self._mark:
            return self._cycle if not self._beats and now - self._since >= SILENT_PROGRESS_S else None
        self._beats, self._reached = True, _higher(self._reached, step)
        further = self._reached is None or self._previous is None or self._reached > self._previous
        return self._cycle if further else None

    def _read(self) -> tuple[object, int | None]:
        """Return a value that changes with every beat, and the highest step."""
        mark, step = read_beat(self._path)
        return (mark, self._reports), _higher(step, self._reported)


def _higher(one: int | None, other: int | None) -> int | None:
    return max((step for step in (one, other) if step is not None), default=None)


def read_beat(path: str) -> tuple[object, int | None]:
    """Return a value that changes with every beat, and its step. Opening makes network filesystems revalidate."""
    try:
        with open(path, "rb") as file:
            info, text = os.fstat(file.fileno()), file.read(64)
    except OSError:
        return None, None
    return (info.st_mtime_ns, text), int(text) if text.strip().isdigit() else None
