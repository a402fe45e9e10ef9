"""One process that a scope was asked to start, as its owner sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

from muster.process.exit import OWNER, Exit

OF_SUPERVISOR = (signal.SIGTERM, signal.SIGKILL)  # what it sends


class ManagedProcess:
    """Runs until its `exit` is known."""

    def __init__(self, started: asyncio.Future[int], ended: asyncio.Future[Exit]) -> None:
        self.started, self._ended = started, ended
        self._sent: set[int] = set()

    @property
    def pid(self) -> int:
        return self.started.result()

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    def signal(self, signum: int) -> None:
        """Signal its whole group; nothing happens when it has ended."""
        if self.exit is None:
            self._sent.add(signum)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    @property
    def runs(self) -> bool:
        return self.started.done() and self.started.exception() is None and self.exit is None

    def refuse(self, error: Exception) -> None:
        """It is not going to be started."""
        if not self.started.done():
            self.started.set_exception(error)
            self._ended.cancel()

    def on_exited(self, message: dict[str, Any]) -> None:
        """The supervisor's report of its end."""
        self._ended.set_result(exit_of(message, self._sent))

    def on_left(self, killed: bool) -> None:
        """The scope is closed, and this one could not be ended. Where it was killed, that will be its end."""
        if self.runs:
            end = Exit(signal=signal.SIGKILL, ended_by=OWNER, unended=True) if killed else Exit(unended=True)
            self._ended.set_result(end)

    def on_lost(self) -> None:
        """Nobody is going to report its end."""
        if not self._ended.done():
            self._ended.set_result(Exit())


def exit_of(message: dict[str, Any], sent: set[int] | None = None) -> Exit:
    """An end as the supervisor reports it, and what the owner itself had sent before."""
    all_sent = {*(sent or ()), *(OF_SUPERVISOR if message["signalled"] else ())}
    return Exit.from_status(message["status"], all_sent, message["oom_kills"])
