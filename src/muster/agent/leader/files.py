"""The leader's access to the run directory, off its event loop: a filesystem may hang for longer than a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from muster.agent.leader.log_tail import LogTails
from muster.agent.run_directory import retried

T = TypeVar("T")


class Files:
    """One thread for everything that is written or polled, in order, and another one for the tails of logs."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)  # one thread: an older status must never overwrite a newer one
        self._tails = LogTails()

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Run a file operation after all earlier ones and return its result.

        A queued operation is carried out even if the task that waits for it is cancelled: the end of a run cancels the
        task that publishes regularly, and a batch that it has handed over exists nowhere else.
        """
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work, *args))

    async def retried(self, path: str, work: Callable[..., T], *args: Any) -> T:
        """Run a file operation on `path` as `run` does, and repeat it while the filesystem fails.

        Raises RunDirectoryError.
        """
        return await retried(path, work, *args, run=self.run)

    async def tail(self, path: str) -> list[str]:
        """Return the last lines of a log; none if they cannot be read within half a second."""
        return await self._tails.read(path)

    async def finish(self) -> None:
        """Wait until everything that was begun is written."""
        await self.run(lambda: None)
