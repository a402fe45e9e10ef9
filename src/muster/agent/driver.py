"""The driver: the user's command, a child of the lead, in a scope of its own."""

from __future__ import annotations

import asyncio
import os
import signal

from muster.process import Exit, Owned, Scope, SpawnError

NOT_STARTED = 127  # as a shell says it


class Driver:
    """Starts the command, waits for it, and ends all that is left of it."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._scope = Scope("driver")
        self._process: Owned | None = None
        self._ending: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Open the scope ahead of time: the driver is to start the moment the last node is ready."""
        await self._scope.open()

    async def run(self, command: list[str], env: dict[str, str], cwd: str) -> Exit:
        """Returns when the command has ended and nothing of it is left."""
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._process = await self._scope.spawn(command, env=env, cwd=cwd, stdout=log, stderr=log)
        except SpawnError as error:
            if self._ending is not None or self._scope.lost:  # not the command's fault
                return Exit(signal=signal.SIGTERM) if self._ending is not None else Exit()
            os.write(log, f"muster: the driver could not be started: {error}\n".encode())
            await self._scope.close(0)
            return Exit(code=NOT_STARTED)
        finally:
            os.close(log)
        exit = await self._process.wait()
        await self._scope.close(grace=0.5)
        return exit

    def end(self, grace: float) -> None:
        """TERM now, KILL after the grace; `run` then returns."""
        self._ending = asyncio.ensure_future(self._end(grace))

    async def _end(self, grace: float) -> None:
        await self._scope.close(grace)

    async def close(self) -> None:
        await self._scope.close(0)
