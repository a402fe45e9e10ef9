"""Stall detection: a driver is active while its output grows or it calls `muster.beat()`."""

from __future__ import annotations

import os


class StallDetector:
    """Polled regularly, off the event loop. Times are arguments, so that tests need not wait."""

    def __init__(self, timeout: float, log: str, beat: str) -> None:
        self.timeout = timeout
        self._files = (log, beat)
        self._seen: object = None
        self.since = 0.0  # when the last activity was seen

    def poll(self, now: float) -> bool:
        """Return whether nothing has changed for the timeout; the first poll starts the time."""
        marks = [_mark(path) for path in self._files]
        if marks != self._seen:
            self._seen, self.since = marks, now
        return now - self.since >= self.timeout


def _mark(path: str) -> object:
    """Return a value that changes when the file is written or touched. Opening makes network filesystems revalidate."""
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns
