"""Whether the driver still does something: its output grows, or it says so with `muster.beat()`."""

from __future__ import annotations

import os


class StallDetector:
    """Looked at regularly, off the event loop; the time is given, so that it can be tested without waiting."""

    def __init__(self, timeout: float, log: str, beat: str) -> None:
        self.timeout = timeout
        self._files = (log, beat)
        self._seen: object = None
        self.since = 0.0  # when the last sign of life was seen

    def look(self, now: float) -> bool:
        """True when nothing has changed for as long as the driver may be silent; the first look starts the time."""
        marks = [_mark(path) for path in self._files]
        if marks != self._seen:
            self._seen, self.since = marks, now
        return now - self.since >= self.timeout


def _mark(path: str) -> object:
    """What changes when the file is written or touched. Opened, since that asks a network filesystem anew."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
