"""The driver: the user's command, started by the leader in a separate scope; and what it shares with a gang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Union

from muster.agent.control.connections import AgentMessage
from muster.agent.control.messages import HungRankEnded, ProcessesEnded, RankFailed, UnendedProcess
from muster.agent.leader.inbox import Inbox
from muster.agent.run_directory import retried
from muster.exit_codes import NOT_STARTED
from muster.process import Exit, LeftoverProcess, Log, ManagedProcess, Scope, ScopeWatcher, SpawnError
from muster.process.log_segments import open_newest
from muster.process.scope import LEFTOVER_GRACE_S
from muster.process.supervisor import close_all

logger = logging.getLogger(__name__)

GangReport = Union[RankFailed, HungRankEnded, ProcessesEnded]


def mark_cycle(log: str, cycle: int, reason: str) -> int:
    """Write a line that separates the cycles in the driver's log; return the position of this cycle's output."""
    with contextlib.suppress(OSError):
        fd, start = open_newest(log)
        with open(fd, "ab") as file:
            if cycle:
                line = reason.splitlines()[0] if reason else "restarted"
                file.write(f"muster: cycle {cycle}: {line}\n".encode())
            return start + file.tell()
    return 0


class RunningDriver(ABC):
    """The processes that run the user's command in one cycle: a driver on the leader's node, or a gang on all nodes."""

    completed = False  # the command has ended by itself, before `end` was called

    @abstractmethod
    async def run(self, command: list[str], env: dict[str, str], cwd: str) -> Exit:
        """Run the command; return when all its processes have ended, except those that SIGKILL cannot end."""

    @abstractmethod
    def signal(self, signum: int) -> None:
        """Send the signal to the processes."""

    @abstractmethod
    def end(self, grace: float) -> None:
        """Send SIGTERM now and SIGKILL after `grace` seconds; `run` then returns."""

    @abstractmethod
    async def close(self, grace: float = 0.0) -> None:
        """End all processes; return when none is left."""

    @abstractmethod
    def failure_source(self, leader: int) -> tuple[int, str]:
        """Return the node and the log that show why the command failed."""

    def on_node_lost(self, node_index: int, fenced_at: float) -> None:
        """Handle the loss of a node, whose processes may run until `fenced_at`."""
        return None

    def on_message(self, node_index: int, report: GangReport) -> None:
        """Handle a node's report on its processes of a gang."""
        return None


class Driver(RunningDriver, ScopeWatcher):
    """Starts the command, waits for it, and ends all its processes."""

    def __init__(self, log: Log, inbox: Inbox, node_index: int, directories: Sequence[str] = ()) -> None:
        """Start to open the scope, so that the driver starts as soon as the last node is ready.

        `directories` are removed if this agent dies.
        """
        self._log, self._inbox, self._node_index = log, inbox, node_index
        self._scope = Scope("driver", directories=directories, watcher=self)
        self._opening = asyncio.ensure_future(self._scope.open())
        self._process: ManagedProcess | None = None
        self._held: list[int] | None = None  # signals received while the command was being started
        self._ending: asyncio.Future[None] | None = None

    async def run(self, command: list[str], env: dict[str, str], cwd: str) -> Exit:
        """Run the command; return when it and all its processes have ended, except those that SIGKILL cannot end.

        Raises RunDirectoryError if its log cannot be opened.
        """
        log = await retried(self._log.path, self._log.open)
        try:
            await self._opening
            self._held = []
            process = await self._scope.spawn(command, env=env, cwd=cwd, log=self._log, opened_log=log)
            self._process = process
            for signum in self._held:
                process.signal(signum)
        except SpawnError as error:
            if self._scope.lost:
                return Exit()
            if self._ending is not None:  # the scope was closed before the command started
                return Exit(signal=signal.SIGTERM)
            line = f"muster: the driver could not be started: {error}\n".encode()
            await asyncio.to_thread(os.write, log, line)
            return Exit(code=NOT_STARTED)
        finally:
            await asyncio.to_thread(close_all, [log])
        exit = await process.wait()
        self.completed = self._ending is None
        await self._scope.close(grace=LEFTOVER_GRACE_S)
        return exit

    def failure_source(self, leader: int) -> tuple[int, str]:
        """Return the node and the log that show why the driver failed."""
        return leader, self._log.path

    def signal(self, signum: int) -> None:
        """Send the signal to the command's process group while it runs."""
        if self._process is not None:
            self._process.signal(signum)
        elif self._held is not None:  # it may run already: the supervisor's report is on its way
            self._held.append(signum)

    def end(self, grace: float) -> None:
        """Send SIGTERM now and SIGKILL after `grace` seconds; `run` then returns."""
        self._ending = asyncio.ensure_future(self.close(grace))

    def processes_left(self, left: Sequence[LeftoverProcess]) -> None:
        for one in left:
            logger.warning("%s", one)
            self._inbox.post(AgentMessage(self._node_index, UnendedProcess(str(one))))

    async def close(self, grace: float = 0.0) -> None:
        await self._opening
        await self._scope.close(grace)
