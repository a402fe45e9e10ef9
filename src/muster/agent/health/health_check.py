"""A waiting node's own health: the job's check, run again and again in a scope of its own, beside everything else."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import IO

from muster.process import Scope, SpawnError

logger = logging.getLogger(__name__)

SHORTEST_TIMEOUT_S = 60.0
LAST_BYTES = 4096  # of what the check printed: enough for its last line


class HealthCheck:
    """`begin` and `stop` as the leader says; every result goes to `report`: whether it is well, else why not."""

    def __init__(self, report: Callable[[bool, str], None]) -> None:
        self._report = report
        self._work: asyncio.Task[None] | None = None

    def begin(self, text: str, interval: float) -> None:
        """The first time after one interval: the node was checked when it came."""
        self.end()
        self._work = asyncio.create_task(self._repeat(text, interval))

    def end(self) -> None:
        """A check that is under way is ended, too, and its result is nobody's concern."""
        if self._work is not None:
            self._work.cancel()

    async def close(self) -> None:
        """Returns when nothing of a check is left."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _repeat(self, text: str, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            unhealthy_reason = await check(text, max(interval, SHORTEST_TIMEOUT_S))
            if unhealthy_reason is not None:
                logger.warning("%s", unhealthy_reason)
            self._report(unhealthy_reason is None, unhealthy_reason or "")


async def check(text: str, timeout: float) -> str | None:
    """Run the check, with what --setup exported; None when it passed, else what is wrong."""
    command = [shutil.which("bash") or "sh", "-c", text]
    try:
        with tempfile.TemporaryFile() as output:
            async with Scope("check") as scope:
                process = await scope.spawn(command, stdout=output.fileno(), stderr=output.fileno())
                exit = await asyncio.wait_for(process.wait(), timeout)
            if exit.shell_code == 0:
                return None
            last = _last_line(output)
            return f"--health-check failed{f': {last}' if last else ''} (code {exit.shell_code})"
    except asyncio.TimeoutError:
        return f"--health-check did not end within {timeout:g} s"
    except (OSError, SpawnError) as error:  # a node that cannot even start a process is not well
        return f"--health-check could not be run: {error}"


def _last_line(output: IO[bytes]) -> str:
    output.seek(max(0, os.fstat(output.fileno()).st_size - LAST_BYTES))
    lines = output.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
