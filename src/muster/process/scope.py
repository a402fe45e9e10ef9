"""A scope: everything started in it, directly or not, is gone when it is closed, or when its owner dies.

The owner's side of a keeper (see keeper.py), for asyncio:

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
from types import ModuleType, TracebackType
from typing import Any, Callable

from muster.process import keeper, lease
from muster.process.exit import Exit
from muster.process.keeper import LENGTH, POLL_S, kill_descendants

LOST_OWNER_GRACE_S = 2.0


class SpawnError(Exception):
    """The program could not be started at all (not found, not executable, no such directory)."""


@dataclass(frozen=True)
class Closed:
    """What closing a scope took."""

    killed: int
    seconds: float


class Owned:
    """One process that a scope was asked to start."""

    def __init__(self, pid: int, ended: asyncio.Future[Exit]) -> None:
        self.pid = pid
        self._ended = ended

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    def signal(self, signum: int) -> None:
        """Signal its whole group; nothing happens when it has ended."""
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)


class Scope:
    """Owns processes through a keeper of its own."""

    def __init__(
        self, name: str, *, lost_owner_grace: float = LOST_OWNER_GRACE_S, directories: Sequence[str] = ()
    ) -> None:
        """`directories` are removed at the end if the owner is not there any more to do it."""
        self.name = name
        self._directories = directories
        self.on_orphan_exit: Callable[[int, Exit], None] = lambda pid, exit: None
        self.on_lost: Callable[[], None] = lambda: None
        self._lost_owner_grace = lost_owner_grace
        self._next_id = 0
        self._buffer = b""  # what the keeper has said and nobody has taken yet
        self._spawning: dict[int, asyncio.Future[int]] = {}
        self._running: dict[int, asyncio.Future[Exit]] = {}
        self._closed: asyncio.Future[Closed]
        self._opened: asyncio.Future[int]
        self._sending: asyncio.Lock  # a request is two writes; those of two tasks must not mix
        self.lost = False  # the keeper itself was ended by somebody

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
        """Start the keeper; returns when it is ready to own."""
        loop = asyncio.get_running_loop()
        self._closed, self._opened, self._sending = loop.create_future(), loop.create_future(), asyncio.Lock()
        ours, theirs = socket.socketpair()
        program = source_of(keeper)
        fds = [theirs.fileno(), -1 if lease.held is None else lease.held.fd]
        argv = [sys.executable, "-I", "-S", "-c", program, *map(str, fds), str(self._lost_owner_grace)]
        argv += self._directories
        with theirs:
            passed = [fd for fd in fds if fd != -1]
            first = subprocess.Popen(argv, pass_fds=passed, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            self._socket = ours
            ours.setblocking(False)
            self._reader = asyncio.create_task(self._read())
        self.keeper_pid = await self._opened
        first.wait()  # it has forked the keeper proper and left
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
    ) -> Owned:
        """Start a process; descriptors left out are /dev/null. The caller keeps, and closes, its own copies."""
        if self._closed.done():
            raise SpawnError(f"the scope {self.name!r} is {'lost' if self.lost else 'closed'}")
        self._next_id += 1
        request = {
            "do": "spawn", "id": self._next_id, "argv": list(argv), "cwd": cwd,
            "env": dict(os.environ if env is None else env),
        }  # fmt: skip
        fds = [os.open(os.devnull, os.O_RDWR) if fd is None else os.dup(fd) for fd in (stdin, stdout, stderr)]
        # Shielded: a request that was begun is finished, or the next one would be read as its rest.
        return await asyncio.shield(asyncio.ensure_future(self._spawn(self._next_id, request, fds)))

    async def _spawn(self, number: int, request: dict[str, Any], fds: list[int]) -> Owned:
        loop = asyncio.get_running_loop()
        started, ended = loop.create_future(), loop.create_future()
        self._spawning[number], self._running[number] = started, ended
        try:
            await self._send(request, fds)
        except OSError as error:
            if not started.done():
                started.set_exception(SpawnError(f"the keeper of scope {self.name!r} cannot be reached: {error}"))
        finally:
            for fd in fds:
                os.close(fd)
        try:
            return Owned(await started, ended)
        finally:
            del self._spawning[number]

    async def close(self, grace: float) -> Closed:
        """End everything in the scope; returns when all of it is verified gone."""
        if not self._closed.done():
            with contextlib.suppress(OSError):  # the reader sees the same loss and says so
                await self._send({"do": "close", "grace": grace}, [])
        while not self._closed.done():
            if self._reader.done():  # it was cancelled, perhaps just now: the loop is being shut down around us
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
        """Dispatch what the keeper reports, until it is done or lost."""
        loop = asyncio.get_running_loop()
        while not self._closed.done():
            try:
                data = await loop.sock_recv(self._socket, 65536)
            except OSError:
                data = b""
            if not data:
                self._on_lost()
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
            self._opened.set_result(message["pid"])
        elif event == "spawned":
            self._spawning[message["id"]].set_result(message["pid"])
        elif event == "refused":
            self._running.pop(message["id"]).cancel()
            self._spawning[message["id"]].set_exception(SpawnError(message["error"]))
        elif event == "exited" and number is None:
            self.on_orphan_exit(message["pid"], Exit.from_status(message["status"]))
        elif event == "exited":
            self._running.pop(message["id"]).set_result(Exit.from_status(message["status"]))
        elif event == "closed":
            self._refuse_waiting(f"the scope {self.name!r} was closed")
            self._closed.set_result(Closed(message["killed"], message["seconds"]))

    def _refuse_waiting(self, reason: str) -> None:
        """Nothing more will be started: say so to everybody who waits for it."""
        for waiting in (self._opened, *self._spawning.values()):
            if not waiting.done():
                waiting.set_exception(SpawnError(reason))

    def _on_lost(self) -> None:
        """The keeper was killed: its processes are now our children, if we are a subreaper, or init's."""
        self.lost = True
        self._refuse_waiting(f"the keeper of scope {self.name!r} was lost")
        for running in self._running.values():
            if not running.done():
                running.set_result(Exit())
        if not self._closed.done():
            self._closed.set_result(Closed(0, 0.0))
        self.on_lost()


def source_of(module: ModuleType) -> str:
    """A module's source, to be run by `python -c`: it need not be a file (agents import from memory)."""
    assert module.__spec__ is not None and module.__spec__.loader is not None
    source: str = module.__spec__.loader.get_source(module.__name__)  # type: ignore[attr-defined]
    return source


def sweep() -> int:
    """KILL every descendant of this process until none is left: the last resort at an owner's own end."""
    killed: set[int] = set()
    while True:
        reached, foreign = kill_descendants()
        killed.update(reached)
        if foreign and not reached:
            return len(killed)  # only programs that have become another user are left
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return len(killed)
        time.sleep(POLL_S)
