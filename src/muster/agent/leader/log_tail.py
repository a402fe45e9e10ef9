"""The last lines of logs, at once or not at all: while a filesystem pauses, beats have to go on."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, TimeoutError

from muster.rundir.log_tail import tail_of

PATIENCE_S = 0.5
PAUSE_S = 30.0  # after a log that could not be read in time


class LogTails:
    """For the event loop: a read that hangs is waited for only briefly, and the next ones are not even tried."""

    def __init__(self) -> None:
        self._files = ThreadPoolExecutor(1)
        self._again = 0.0

    def of(self, path: str, lines: int = 12) -> list[str]:
        if time.monotonic() < self._again:
            return []
        try:
            return self._files.submit(tail_of, path, lines).result(PATIENCE_S)
        except TimeoutError:
            self._again = time.monotonic() + PAUSE_S
            return []
