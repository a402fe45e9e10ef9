"""The last lines of logs, read on a thread and with a timeout: a filesystem may hang."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from muster.process.log_reader import tail_lines

READ_TIMEOUT_S = 0.5
RETRY_DELAY_S = 30.0  # after a log that could not be read in time


class LogTails:
    """Waits only briefly for a log, and after a timeout skips all reads for a while."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._retry_at = 0.0

    async def read(self, path: str, lines: int = 12) -> list[str]:
        if time.monotonic() < self._retry_at:
            return []
        reading = asyncio.get_running_loop().run_in_executor(self._thread, tail_lines, path, lines)
        try:
            return await asyncio.wait_for(reading, READ_TIMEOUT_S)
        except asyncio.TimeoutError:
            self._retry_at = time.monotonic() + RETRY_DELAY_S
            return []
