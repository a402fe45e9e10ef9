"""Stall detection: a driver is active while its output grows or it calls `muster.beat()`."""

from __future__ import annotations

from muster.process.log_reader import log_end


class StallDetector:
    """Polled regularly, off the event loop. Times are arguments, so that tests need not wait."""

    def __init__(self, timeout: float, log: str, beat: str) -> None:
        self.timeout = timeout
        self._files = (log, beat)
        self._seen: object = None
        self.since = 0.0  # when the last activity was seen

    def poll(self, now: float) -> bool:
        """Return whether nothing has changed for the timeout; the first poll starts the time."""
        log, beat = self._files
        marks = [log_end(log), log_end(beat)]
        if marks != self._seen:
            self._seen, self.since = marks, now
        return now - self.since >= self.timeout
