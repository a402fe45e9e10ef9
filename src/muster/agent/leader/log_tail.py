"""The last lines of logs, read with a timeout: heartbeats must continue while a filesystem hangs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, TimeoutError

from muster.rundir.log_tail import tail_of

READ_TIMEOUT_S = 0.5
RETRY_DELAY_S = 30.0  # after a log that could not be read in time


class LogTails:
    """Reads logs for the event loop: waits only briefly, and after a timeout skips all reads for a while."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._retry_at = 0.0

    def read(self, path: str, lines: int = 12) -> list[str]:
        if time.monotonic() < self._retry_at:
            return []
        try:
            return self._thread.submit(tail_of, path, lines).result(READ_TIMEOUT_S)
        except TimeoutError:
            self._retry_at = time.monotonic() + RETRY_DELAY_S
            return []
