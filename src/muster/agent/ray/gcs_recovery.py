"""Restarts Ray's control service (GCS) when it exits: the same command on the same address, with the state on disk.

The GCS writes its state to a directory of the attempt (`storage_directory`), if this release of Ray can do that; the
starter configures it. Raylets, drivers and workers reconnect to the address for RAY_gcs_rpc_server_reconnect_timeout_s
seconds; `agent/ray/tuning.py` sets a longer time than the outage that is allowed here. A restart begins only after the
previous process was reaped, so two of them never use the same storage.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from muster.agent.ray.restart_budget import RestartBudget
from muster.process import Exit, ManagedProcess, Scope, SpawnError

GCS = "gcs_server"
OUTAGE_LIMIT_S = 150.0  # until a restarted GCS answers: raylets and drivers give up after 180 s
ANSWER_POLL_S = 0.05
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class GcsRecovered:
    """The GCS was restarted and answers; `restarts` counts those of the cycle."""

    restarts: int
    reason: str  # how it ended
    seconds: float  # from its end to the answer


@dataclass(frozen=True)
class ProcessCommand:
    """How a process was started: what is needed to start it again."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str

    @classmethod
    def of(cls, pid: int) -> ProcessCommand:
        """Return the command of a running process. Raises OSError if it has exited."""
        argv, environ = (_read_strings(f"/proc/{pid}/{name}") for name in ("cmdline", "environ"))
        if not argv:
            raise ProcessLookupError(f"process {pid} has exited")
        env = {name: value for name, equals, value in (entry.partition("=") for entry in environ) if equals}
        return cls(tuple(argv), env, os.readlink(f"/proc/{pid}/cwd"))


def _read_strings(path: str) -> list[str]:
    with open(path, "rb") as file:
        return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]


def storage_directory(temp: str) -> str:
    """Return where the GCS stores its state, below the attempt's temporary directory on the head's disk."""
    return os.path.join(temp, "gcs")


class GcsRecovery:
    """Restarts one GCS in its scope, within a budget."""

    def __init__(
        self, scope: Scope, command: ProcessCommand, address: tuple[str, int], post: Callable[[GcsRecovered], None]
    ) -> None:
        """`address`: at which the GCS listens; `post` is called after each restart."""
        self._scope, self._command, self._address, self._post = scope, command, address, post
        self._budget = RestartBudget()

    async def run(self, exit: Exit) -> str:
        """Restart the GCS, which has ended with `exit`, whenever it ends; return why it is not restarted any more."""
        ended, lost_at = f"Ray's {GCS} {exit}", time.monotonic()
        cause = ended  # how the GCS ended that had answered
        while (pause := self._budget.spend(time.monotonic())) is not None:
            await asyncio.sleep(pause)
            try:
                server = await self._scope.spawn(self._command.argv, env=self._command.env, cwd=self._command.cwd)
            except SpawnError as error:
                return f"{cause}, and could not be restarted: {error}"
            answers = await self._answers(server, lost_at + OUTAGE_LIMIT_S)
            if answers:
                self._budget.answered()
                self._post(GcsRecovered(self._budget.restarts, cause, time.monotonic() - lost_at))
            elif server.exit is None:
                return f"{cause}, and after its restart it did not answer for {OUTAGE_LIMIT_S:g} s"
            ended = f"Ray's {GCS} {await server.wait()}"
            if answers:
                cause, lost_at = ended, time.monotonic()
        last = f"; the last one: {ended}" if ended != cause else ""
        return f"{cause}, and is not restarted: {self._budget.refusal}{last}"

    async def _answers(self, server: ManagedProcess, deadline: float) -> bool:
        """Return whether the GCS accepts connections, before it exits or the deadline passes.

        It listens only after it has loaded its state.
        """
        while server.exit is None and time.monotonic() < deadline:
            if await self._accepts_connections():
                return True
            await asyncio.sleep(ANSWER_POLL_S)
        return False

    async def _accepts_connections(self) -> bool:
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as connection:
            connection.setblocking(False)
            connecting = asyncio.get_running_loop().sock_connect(connection, (host, port))
            try:
                await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
            except (OSError, asyncio.TimeoutError):
                return False
        return True
