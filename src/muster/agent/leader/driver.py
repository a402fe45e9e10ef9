"""The driver: the user's command, started by the leader in a separate scope."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence

from muster.exit_codes import NOT_STARTED
from muster.process import Exit, LeftoverProcess, ManagedProcess, Scope, SpawnError
from muster.process.scope import LEFTOVER_GRACE_S

logger = logging.getLogger(__name__)


def mark_cycle(log: str, cycle: int, reason: str) -> int:
    """Write a line that separates the cycles in the driver's log; return the offset of this cycle's output."""
    with contextlib.suppress(OSError), open(log, "ab") as file:
        if cycle:
            line = reason.splitlines()[0] if reason else "restarted"
            file.write(f"muster: cycle {cycle}: {line}\n".encode())
        return file.tell()
    return 0


class Driver:
    """Starts the command, waits for it, and ends all its processes."""

    def __init__(self, log: str) -> None:
        """Start to open the scope, so that the driver starts as soon as the last node is ready."""
        self._log = log
        self._scope = Scope("driver")
        self._scope.on_left = self._report_unended
        self.on_unended: Callable[[str], None] = lambda text: None
        self._opening = asyncio.ensure_future(self._scope.open())
        self._process: ManagedProcess | None = None
        self._held: list[int] | None = None  # signals received while the command was being started
        self._ending: asyncio.Future[None] | None = None

    async def run(self, command: list[str], env: dict[str, str], cwd: str) -> Exit:
        """Run the command; return when it and all its processes have ended, except those that SIGKILL cannot end."""
        log = await asyncio.to_thread(os.open, self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            await self._opening
            self._held = []
            process = await self._scope.spawn(command, env=env, cwd=cwd, stdout=log, stderr=log)
            self._process = process
            for signum in self._held:
                process.signal(signum)
        except SpawnError as error:
            if self._scope.lost:
                return Exit()
            if self._ending is not None:  # the scope was closed before the command started
                return Exit(signal=signal.SIGTERM)
            os.write(log, f"muster: the driver could not be started: {error}\n".encode())
            return Exit(code=NOT_STARTED)
        finally:
            os.close(log)
        exit = await process.wait()
        await self._scope.close(grace=LEFTOVER_GRACE_S)
        return exit

    def failure_source(self, leader: int) -> tuple[int, str]:
        """Return the node and the log that show why the driver failed."""
        return leader, self._log

    def signal(self, signum: int) -> None:
        """Send the signal to the command's process group while it runs."""
        if self._process is not None:
            self._process.signal(signum)
        elif self._held is not None:  # it may run already: the supervisor's report is on its way
            self._held.append(signum)

    def end(self, grace: float) -> None:
        """Send SIGTERM now and SIGKILL after `grace` seconds; `run` then returns."""
        self._ending = asyncio.ensure_future(self.close(grace))

    def _report_unended(self, left: Sequence[LeftoverProcess]) -> None:
        for one in left:
            logger.warning("%s", one)
            self.on_unended(str(one))

    async def close(self, grace: float = 0.0) -> None:
        await self._opening
        await self._scope.close(grace)
