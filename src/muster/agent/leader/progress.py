"""Whether the driver gets on with its work in a cycle: what restarting it again and again is worth.

the driver                        a cycle in which there was progress
calls muster.beat(step=...)       a step higher than any cycle before it had reached
calls muster.beat()               it was called
never calls it                    it ran for 10 minutes
"""

from __future__ import annotations

import os

LONG_S = 600.0
NEVER = (None, 0)


class ProgressTracker:
    """Looked at regularly, off the event loop; the time is given, so that it can be tested without waiting."""

    def __init__(self, beat: str) -> None:
        self._path = beat
        self._reached: int | None = None  # the highest step seen
        self._to_beat: int | None = None  # that of the cycles before
        self._mark: object = None
        self._cycle, self._since = 0, 0.0
        self._beats = False  # in whichever cycle
        self._tellings = 0  # of a gang, whose nodes tell of beats
        self._told: int | None = None

    def told(self, step: int | None) -> None:
        """A process on some node has beaten, and the highest step there is this."""
        self._tellings, self._told = self._tellings + 1, _higher(self._told, step)

    def begin(self, cycle: int, now: float) -> None:
        """This cycle's driver is about to start."""
        self._mark, step = self._read()
        self._beats = self._beats or self._mark != NEVER
        self._to_beat = self._reached = _higher(self._reached, step)
        self._cycle, self._since = cycle, now

    def look(self, now: float) -> int | None:
        """The cycle that has begun, if there has been progress in it."""
        mark, step = self._read()
        if mark == self._mark:
            return self._cycle if not self._beats and now - self._since >= LONG_S else None
        self._beats, self._reached = True, _higher(self._reached, step)
        further = self._reached is None or self._to_beat is None or self._reached > self._to_beat
        return self._cycle if further else None

    def _read(self) -> tuple[object, int | None]:
        """What changes with every beat, and the highest step."""
        mark, step = read_beat(self._path)
        return (mark, self._tellings), _higher(step, self._told)


def _higher(one: int | None, other: int | None) -> int | None:
    return max((step for step in (one, other) if step is not None), default=None)


def read_beat(path: str) -> tuple[object, int | None]:
    """What changes with every beat, and the step if one was given. Opened: that asks a network filesystem anew."""
    try:
        with open(path, "rb") as file:
            found, text = os.fstat(file.fileno()), file.read(64)
    except OSError:
        return None, None
    return (found.st_mtime_ns, text), int(text) if text.strip().isdigit() else None
