"""A scope owns processes: all of them, with their descendants, end when it is closed or its owner dies.

This is the owner's side of a supervisor (see supervisor.py), for asyncio:

    async with Scope("ray", lost_owner_grace=2) as scope:
        process = await scope.spawn(["raylet", ...], stdout=log_fd)
        exit = await process.wait()
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from muster.process import lease
from muster.process.bootstrap import supervisor_command
from muster.process.cgroup import Cgroup
from muster.process.exit import Exit
from muster.process.log import Log, logged_streams, streams
from muster.process.managed import ManagedProcess, exit_of
from muster.process.orphan_scan import (
    OWNER_VARIABLE,
    SUPERVISOR_VARIABLE,
    SweepResult,
    new_tag,
    sweep_tagged,
    wait_for_copiers,
)
from muster.process.proctree import read_process
from muster.process.reaper import reap_later
from muster.process.supervisor import COPY_TIMEOUT_S, LENGTH, close_all
from muster.process.unkillable import LeftoverProcess, describe_leftover

LEFTOVER_GRACE_S = 0.5  # for processes that a program left when it ended
LOST_OWNER_GRACE_S = 2.0  # between TERM and KILL when the owner dies


class SpawnError(Exception):
    """The program could not be started (not found, not executable, no such directory)."""


@dataclass(frozen=True)
class CloseResult:
    """The result of closing a scope: killed processes, duration, and processes that KILL did not end."""

    killed: int
    seconds: float
    left: tuple[LeftoverProcess, ...] = ()


def report_left(left: Sequence[LeftoverProcess]) -> None:
    """Write the processes that could not be ended to stderr."""
    for one in left:
        with contextlib.suppress(OSError):
            print(f"muster: {one}", file=sys.stderr, flush=True)


class ScopeWatcher:
    """Handles what happens in a scope without a request of its owner. Subclasses override what they need."""

    def orphan_exited(self, pid: int, exit: Exit) -> None:
        """Handle the exit of a process that the scope has adopted."""
        return None

    def supervisor_lost(self) -> None:
        """Handle that the supervisor was killed."""
        return None

    def processes_left(self, left: Sequence[LeftoverProcess]) -> None:
        """Handle processes that could not be ended."""
        asyncio.get_running_loop().run_in_executor(None, report_left, left)  # stderr may be a file that hangs


# With vfork the thread that starts a process holds the interpreter until the child has closed its copies of open files.
# On a network filesystem that may hang, and heartbeats must go on meanwhile.
subprocess._USE_VFORK = False  # type: ignore[attr-defined]


def _start_supervisor(argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env=env, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


class Scope:
    """Owns processes through a supervisor."""

    def __init__(
        self,
        name: str,
        *,
        lost_owner_grace: float = LOST_OWNER_GRACE_S,
        directories: Sequence[str] = (),
        tag: str | None = None,
        cgroup: bool = False,
        watcher: ScopeWatcher | None = None,
    ) -> None:
        """Prepare a scope; `open` starts its supervisor.

        `lost_owner_grace` is the time in seconds between TERM and KILL if the owner dies; then `directories` are
        removed, too. `tag` must be unique (default: a new one). `cgroup` requests a control group where permitted, in
        which all processes end in one step; that adds some milliseconds to each start. `watcher` is notified.
        """
        self.name = name
        self.tag = new_tag() if tag is None else tag
        self._directories = directories
        self._lost_owner_grace = lost_owner_grace
        self._watcher = watcher or ScopeWatcher()
        self._wants_cgroup = cgroup
        self.cgroup = Cgroup()
        self.copying: set[int] = set()  # children of the supervisor that write captured output
        self._adopter = os.getpid()  # adopts the supervisor's orphans if it is killed
        self._next_id = 0
        self._buffer = b""  # received from the supervisor, not yet parsed
        self._running: dict[int, ManagedProcess] = {}
        self._closed: asyncio.Future[CloseResult]
        self._opened: asyncio.Future[int]
        self._sending: asyncio.Lock  # a request is two writes, which tasks must not interleave
        self.lost = False  # the supervisor was killed

    async def __aenter__(self) -> Scope:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(grace=self._lost_owner_grace)

    async def open(self) -> Scope:
        """Start the supervisor and wait until it is ready."""
        loop = asyncio.get_running_loop()
        self._closed, self._opened, self._sending = loop.create_future(), loop.create_future(), asyncio.Lock()
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), -1 if lease.held is None else lease.held.fd]
        group = new_tag() if self._wants_cgroup else ""
        argv = [*supervisor_command(), *map(str, fds), str(self._lost_owner_grace), group, *self._directories]
        env = {**os.environ, SUPERVISOR_VARIABLE: self.tag}
        with theirs:
            passed = [fd for fd in fds if fd != -1]
            try:
                first = await loop.run_in_executor(None, _start_supervisor, argv, env, passed)
            except BaseException:
                ours.close()
                raise
            self._socket = ours
            ours.setblocking(False)
            self._reader = asyncio.create_task(self._read())
        self.supervisor_pid = await self._opened
        # It has forked the supervisor and exits. A filesystem may delay that, when it closes its copy of stderr.
        await loop.run_in_executor(None, first.wait)
        supervisor = await loop.run_in_executor(None, read_process, self.supervisor_pid)
        self._adopter = supervisor[0] if supervisor is not None else self._adopter
        return self

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        log: Log | None = None,
        opened_log: int | None = None,
    ) -> ManagedProcess:
        """Start a process. Raises SpawnError. The caller keeps and closes its descriptors.

        Output without a descriptor goes to `log`; other missing streams are /dev/null. `opened_log`: what `log.open`
        has returned, so that the log need not be opened again, which may fail.
        """
        if self.lost or self._closed.done():
            raise SpawnError(f"the scope {self.name!r} is {'lost' if self.lost else 'closed'}")
        self._next_id += 1
        request = {
            "do": "spawn",
            "id": self._next_id,
            "argv": list(argv),
            "cwd": cwd,
            "env": {**(os.environ if env is None else env), OWNER_VARIABLE: self.tag},
            "capture": None if log is None else log.capture(),
        }
        *given, opened = [None if fd is None else os.dup(fd) for fd in (stdin, stdout, stderr, opened_log)]
        # Shielded: a partly sent request must be finished, or the next one would be read as its rest.
        return await asyncio.shield(asyncio.ensure_future(self._spawn(self._next_id, request, given, log, opened)))

    async def _spawn(
        self, number: int, request: dict[str, Any], given: list[int | None], log: Log | None, opened: int | None
    ) -> ManagedProcess:
        loop = asyncio.get_running_loop()
        try:
            fds = (
                streams(given) if log is None else await loop.run_in_executor(None, logged_streams, given, log, opened)
            )
        except OSError as error:
            raise SpawnError(f"its log cannot be opened: {error}") from error
        owned = self._running[number] = ManagedProcess(loop.create_future(), loop.create_future())
        try:
            await self._send(request, fds)
        except OSError as error:
            owned.refuse(SpawnError(f"the supervisor of scope {self.name!r} cannot be reached: {error}"))
        finally:
            await loop.run_in_executor(None, close_all, fds)  # one may be a log on a filesystem that hangs
        await owned.started
        return owned

    async def close(self, grace: float) -> CloseResult:
        """End all processes of the scope; return when they are verified dead, except those that KILL cannot end."""
        if not self._closed.done():
            with contextlib.suppress(OSError):  # the reader sees the same loss and handles it
                await self._send({"do": "close", "grace": grace}, [])
        while not self._closed.done():
            if self._reader.done():  # cancelled: the event loop is being shut down
                self._reader = asyncio.create_task(self._read())
            waiting: list[asyncio.Future[Any]] = [self._closed, self._reader]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self._socket.close()
        return self._closed.result()

    async def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        body = json.dumps(message).encode()
        async with self._sending:
            while True:
                try:
                    socket.send_fds(self._socket, [LENGTH.pack(len(body))], fds)
                    break
                except BlockingIOError:
                    await self._writable()
            await asyncio.get_running_loop().sock_sendall(self._socket, body)

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._socket, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._socket)

    async def _read(self) -> None:
        """Dispatch messages of the supervisor until the scope is closed or the supervisor is lost."""
        loop = asyncio.get_running_loop()
        while not self._closed.done():
            try:
                data = await loop.sock_recv(self._socket, 65536)
            except OSError:
                data = b""
            if not data:
                await self._end_lost()
                return
            self._buffer += data
            while len(self._buffer) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
                if len(self._buffer) < end:
                    break
                message, self._buffer = json.loads(self._buffer[LENGTH.size : end]), self._buffer[end:]
                self._on_message(message)

    def _on_message(self, message: dict[str, Any]) -> None:
        event, number = message["event"], message.get("id")
        if event == "keeping":
            self.cgroup = Cgroup(message["cgroup"])
            self._opened.set_result(message["pid"])
        elif event == "copying":
            self.copying.add(message["pid"])
        elif event == "copied":
            self.copying.discard(message["pid"])
        elif event == "spawned":
            self._running[message["id"]].started.set_result(message["pid"])
        elif event == "refused":
            self._running.pop(message["id"]).refuse(SpawnError(message["error"]))
        elif event == "exited" and number is None:
            self._watcher.orphan_exited(message["pid"], exit_of(message))
        elif event == "exited":
            self._running.pop(message["id"]).on_exited(message)
        elif event == "closed":
            self._refuse_waiting(f"the scope {self.name!r} was closed")
            left = tuple(map(LeftoverProcess.from_message, message["left"]))
            foreign = {one.pid for one in left if not one.killed}
            for owned in self._running.values():
                owned.on_left(owned.runs and owned.pid not in foreign)
            self._end(
                CloseResult(message["killed"], message["seconds"], left), [*self.copying, *(one.pid for one in left)]
            )

    def _end(self, closed: CloseResult, adopted: Sequence[int]) -> None:
        """Finish the scope: set the result, report leftovers, and reap adopted processes."""
        if not self._closed.done():
            self._closed.set_result(closed)
            if self._opened.exception() is None:
                reap_later(self._opened.result(), adopted)
            if closed.left:
                self._watcher.processes_left(closed.left)

    def _refuse_waiting(self, reason: str) -> None:
        """Fail all pending starts."""
        if not self._opened.done():
            self._opened.set_exception(SpawnError(reason))
        for owned in self._running.values():
            owned.refuse(SpawnError(reason))

    async def _end_lost(self) -> None:
        """Handle the loss of the supervisor: end its processes, which this or another subreaper has adopted."""
        start = time.monotonic()
        groups = [owned.pid for owned in self._running.values() if owned.runs]
        if not self.lost:
            self.lost = True
            self._refuse_waiting(f"the supervisor of scope {self.name!r} was lost")
            for owned in self._running.values():
                owned.on_lost()
            self._watcher.supervisor_lost()
        swept, left = await asyncio.get_running_loop().run_in_executor(None, self._sweep_lost, groups)
        self._end(CloseResult(swept.ended, time.monotonic() - start, left), swept.pids)

    def _sweep_lost(self, groups: Sequence[int]) -> tuple[SweepResult, tuple[LeftoverProcess, ...]]:
        """Kill the scope's processes, and describe those that are left.

        Without grace: if this process ended first, they would be left.
        """
        self.cgroup.kill()
        swept = sweep_tagged(self.tag, groups=groups, adopters=[self._adopter])
        self.cgroup.remove()
        wait_for_copiers(self.tag, COPY_TIMEOUT_S)
        return swept, tuple(one for one in map(describe_leftover, swept.left) if one is not None)
