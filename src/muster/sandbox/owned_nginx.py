"""nginx, owned: started on a socket of ours, given new configurations, ended with all of its workers.

Everything it reads and writes is in a directory of its own, which only our user can enter: its configuration holds the
token. Its listening socket comes as its standard input (the variable NGINX, made for its own upgrades, says so).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import tempfile
from dataclasses import replace

from muster.process import Exit, Log, Owned, Scope, SpawnError
from muster.sandbox.members import Members
from muster.sandbox.nginx import Plan, render
from muster.sandbox.zygote import SandboxError

LOG_BYTES = 1 << 20
TAIL = 2000
ENVIRONMENT = {"PATH": os.defpath, "LANG": "C"}


class OwnedNginx:
    """Of one gateway; started as often as it is needed."""

    def __init__(self, program: str, bound: socket.socket, plan: Plan, scratch_dir: str) -> None:
        """`plan` has everything but a place and members."""
        self._program, self._bound = program, bound
        bound.setblocking(False)  # nginx leaves one that it is given as it is, and would wait in accept()
        self._top = tempfile.mkdtemp(prefix="muster-gateway-", dir=scratch_dir)
        self._place = f"{self._top}/nginx"  # if we are killed, the keeper removes it, and what it was made in
        os.mkdir(self._place, 0o700)
        self._plan = replace(plan, place=self._place)
        self._log = Log(f"{self._place}/error.log", max_bytes=LOG_BYTES)
        self._scope: Scope | None = None
        self._running: Owned | None = None
        self._configuring = asyncio.Lock()

    @property
    def runs(self) -> bool:
        return self._running is not None and self._running.exit is None

    async def start(self, members: Members) -> None:
        """SandboxError, with nginx's own words, when it cannot be."""
        await self._end()
        self._scope = Scope("gateway", lost_owner_grace=0.0, directories=[self._place])
        try:
            await self._scope.open()
            async with self._configuring:
                await self._configure(members)
                self._running = await self._scope.spawn(
                    self._command("nginx.conf"), env={**ENVIRONMENT, "NGINX": "0;"}, cwd="/",
                    stdin=self._bound.fileno(), log=self._log,
                )  # fmt: skip
        except SpawnError as error:
            await self._end()
            raise SandboxError(f"nginx cannot be started: {error}") from None
        except BaseException:
            await self._end()
            raise

    async def reload(self, members: Members) -> None:
        """The old worker answers what it has to the end. After a SandboxError all is as it was."""
        async with self._configuring:
            if self._running is not None and self.runs:
                await self._configure(members)
                self._running.signal(signal.SIGHUP)  # to all of it; workers do not mind

    async def wait(self) -> Exit:
        assert self._running is not None
        return await self._running.wait()

    def last_words(self) -> str:
        return self._log.tail(TAIL).strip()

    async def close(self, drain_s: float) -> None:
        """What is being answered has this long."""
        if self._running is not None:
            self._running.signal(signal.SIGQUIT)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._running.wait(), drain_s)
        await self._end()
        shutil.rmtree(self._top, ignore_errors=True)

    async def _end(self) -> None:
        """nginx's workers outlive their master; the scope does not let them."""
        scope, self._scope, self._running = self._scope, None, None
        if scope is not None:
            await scope.close(grace=0.0)

    def _command(self, file: str, *more: str) -> list[str]:
        return [self._program, "-p", self._place, "-e", "stderr", "-c", f"{self._place}/{file}", *more]

    async def _configure(self, members: Members) -> None:
        """Write its configuration, if nginx itself finds nothing wrong with it."""
        assert self._scope is not None
        new, log = f"{self._place}/new.conf", Log(f"{self._place}/test.log")
        for path in (new, log.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(render(replace(self._plan, members=members)))
        try:
            test = await self._scope.spawn(self._command("new.conf", "-t"), env=ENVIRONMENT, cwd="/", log=log)
        except SpawnError as error:
            raise SandboxError(f"nginx cannot be started: {error}") from None
        if (ended := await test.wait()).code != 0:
            raise SandboxError(f"nginx refuses its configuration ({ended}): {log.tail(TAIL).strip()}")
        os.replace(new, f"{self._place}/nginx.conf")
