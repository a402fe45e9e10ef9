"""A process of a scope, as its owner sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

from muster.process.exit import OWNER, Exit

SUPERVISOR_SIGNALS = (signal.SIGTERM, signal.SIGKILL)


class ManagedProcess:
    """A process started through a scope's supervisor; it runs until `exit` is set."""

    def __init__(self, started: asyncio.Future[int], ended: asyncio.Future[Exit]) -> None:
        self.started, self._ended = started, ended
        self._sent: set[int] = set()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.started.result()

    @property
    def exit(self) -> Exit | None:
        """The end of the process; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> Exit:
        """Wait for the end of the process, and return how it ended."""
        return await asyncio.shield(self._ended)

    def signal(self, signum: int) -> None:
        """Send a signal to its process group; no-op if it has ended."""
        if self.exit is None:
            self._sent.add(signum)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    @property
    def runs(self) -> bool:
        """Return whether the process has started and not ended."""
        return self.started.done() and self.started.exception() is None and self.exit is None

    def refuse(self, error: Exception) -> None:
        """Fail the start with `error`, unless the process has started."""
        if not self.started.done():
            self.started.set_exception(error)
            self._ended.cancel()

    def on_exited(self, message: dict[str, Any]) -> None:
        """Handle the supervisor's report of its end."""
        self._ended.set_result(exit_of(message, self._sent))

    def on_left(self, killed: bool) -> None:
        """Handle a closed scope that could not end this process. If it was `killed`, SIGKILL will be its end."""
        if self.runs:
            end = Exit(signal=signal.SIGKILL, ended_by=OWNER, unended=True) if killed else Exit(unended=True)
            self._ended.set_result(end)

    def on_lost(self) -> None:
        """Handle the loss of the supervisor: the end of the process will not be reported."""
        if not self._ended.done():
            self._ended.set_result(Exit())


def exit_of(message: dict[str, Any], sent: set[int] | None = None) -> Exit:
    """Convert the supervisor's report of an end, given the signals that the owner had sent."""
    all_sent = {*(sent or ()), *(SUPERVISOR_SIGNALS if message["signalled"] else ())}
    return Exit.from_status(message["status"], all_sent, message["oom_kills"])
