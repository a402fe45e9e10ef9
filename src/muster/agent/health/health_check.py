"""Periodic run of the built-in checks, and of the job's --health-check, on a spare node."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from typing import IO

from muster.process import Scope, SpawnError

logger = logging.getLogger(__name__)

MIN_CHECK_TIMEOUT_S = 60.0  # a check may take longer than a short interval
OUTPUT_TAIL_BYTES = 4096  # enough for the last line of the check's output


class HealthCheck:
    """Runs the checks between `start` and `stop`; passes each result to `report`: healthy or not, and the reason."""

    def __init__(self, report: Callable[[bool, str], None], built_in: Callable[[], Awaitable[str | None]]) -> None:
        """`built_in` runs the built-in checks; it returns None, or the reason of the failure."""
        self._report, self._built_in = report, built_in
        self._task: asyncio.Task[None] | None = None

    def start(self, text: str | None, interval: float) -> None:
        """Run the checks every `interval` seconds, first after one interval: the node was checked on arrival."""
        self.stop()
        self._task = asyncio.create_task(self._repeat(text, interval))

    def stop(self) -> None:
        """Cancel the checks; a running one is killed and its result is not reported."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop the checks; return when no process of a check is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _repeat(self, text: str | None, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            unhealthy_reason = await self._built_in()
            if unhealthy_reason is None and text is not None:
                unhealthy_reason = await run_check(text, max(interval, MIN_CHECK_TIMEOUT_S))
            if unhealthy_reason is not None:
                logger.warning("%s", unhealthy_reason)
            self._report(unhealthy_reason is None, unhealthy_reason or "")


async def run_check(text: str, timeout: float) -> str | None:
    """Run the check in the agent's environment, which includes --setup; return None, or the reason of the failure."""
    try:
        command, output = await asyncio.to_thread(_prepare, text)
        try:
            async with Scope("check") as scope:
                process = await scope.spawn(command, stdout=output.fileno(), stderr=output.fileno())
                exit = await asyncio.wait_for(process.wait(), timeout)
            if exit.shell_code == 0:
                return None
            last = await asyncio.to_thread(_last_line, output)
            return f"--health-check failed{f': {last}' if last else ''} (code {exit.shell_code})"
        finally:
            await asyncio.to_thread(output.close)
    except asyncio.TimeoutError:
        return f"--health-check did not end within {timeout:g} s"
    except (OSError, SpawnError) as error:  # a node that cannot start a process is unhealthy
        return f"--health-check could not be run: {error}"


def _prepare(text: str) -> tuple[list[str], IO[bytes]]:
    """Return the command and a file for its output. Both are on filesystems that may hang: PATH and TMPDIR."""
    return [shutil.which("bash") or "sh", "-c", text], tempfile.TemporaryFile()


def _last_line(output: IO[bytes]) -> str:
    output.seek(max(0, os.fstat(output.fileno()).st_size - OUTPUT_TAIL_BYTES))
    lines = output.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
