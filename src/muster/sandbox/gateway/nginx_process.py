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

from muster.process import Exit, Log, ManagedProcess, Scope, SpawnError
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.gateway.nginx_config import GENERATION_HEADER, GatewayPlan, gateway_answer, gateway_file, render
from muster.sandbox.gateway.peers import PeerList
from muster.sandbox.http import client, codec

LOG_BYTES = 1 << 20
TAIL = 2000
TAKE_UP_S, ASK_S = 60.0, 2.0  # for a new configuration, on a machine that is busy; for one answer
ASK_AGAIN_S = 0.05
ENVIRONMENT = {"PATH": os.defpath, "LANG": "C"}


class NginxProcess:
    """Of one gateway; started as often as it is needed."""

    def __init__(self, program: str, bound: socket.socket, plan: GatewayPlan, scratch_dir: str) -> None:
        """`plan` has everything but a place and members."""
        self._program, self._bound = program, bound
        bound.setblocking(False)  # nginx leaves one that it is given as it is, and would wait in accept()
        self._top = tempfile.mkdtemp(prefix="muster-gateway-", dir=scratch_dir)
        self._place = f"{self._top}/nginx"  # if we are killed, the supervisor removes it, and what it was made in
        os.mkdir(self._place, 0o700)
        self._plan = replace(plan, place=self._place)
        self._log = Log(f"{self._place}/error.log", max_bytes=LOG_BYTES)
        self._scope: Scope | None = None
        self._running: ManagedProcess | None = None
        self._configuring = asyncio.Lock()
        self._served = 0  # the generation of the configuration that it served last
        self._takes = self._leaving = False

    @property
    def runs(self) -> bool:
        return self._running is not None and self._running.exit is None

    @property
    def serves(self) -> bool:
        """Whether it takes connections: it has shown that it does, and was not asked to leave."""
        return self.runs and self._takes and not self._leaving

    @property
    def was_left(self) -> bool:
        """Whether its end was asked for."""
        return self._leaving

    async def start(self, members: PeerList) -> None:
        """SandboxError, with nginx's own words, when it cannot be."""
        await self._end()
        self._scope = Scope("gateway", lost_owner_grace=0.0, directories=[self._place])
        try:
            await self._scope.open()
            async with self._configuring:
                await self._configure(members)
                self._running = await self._scope.spawn(
                    self._command("nginx.conf"),
                    env={**ENVIRONMENT, "NGINX": "0;"},
                    cwd="/",
                    stdin=self._bound.fileno(),
                    log=self._log,
                )
                await self._until_it_serves()
        except SpawnError as error:
            await self._end()
            raise SandboxError(f"nginx cannot be started: {error}") from None
        except BaseException:
            await self._end()
            raise

    async def reload(self, members: PeerList) -> None:
        """Returns when the new members are served; the old worker answers what it has to the end.

        SandboxError when they are not: nginx refuses them, or does not serve them in time.
        """
        async with self._configuring:
            if self._running is None or not self.serves:
                return
            await self._configure(members)
            self._running.signal(signal.SIGHUP)  # to all of it; workers do not mind
            await self._until_it_serves()

    def leave(self) -> None:
        """Make it answer what it has to the end, take nothing more, and end."""
        self._leaving = True
        if self._running is not None and self.runs:
            self._running.signal(signal.SIGQUIT)

    async def wait(self) -> Exit:
        """Until its master has ended. Workers that outlive it are asked to answer what they have, and take no more."""
        running = self._running
        assert running is not None
        ended = await running.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGQUIT)
        return ended

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
        self._takes = self._leaving = False
        if scope is not None:
            await scope.close(grace=0.0)

    async def _until_it_serves(self) -> None:
        """Wait until it serves the configuration made last: one that is just being started would miss a signal."""
        loop = asyncio.get_running_loop()
        end, wanted = loop.time() + TAKE_UP_S, str(self._plan.generation)
        while self.runs and loop.time() < end:
            with contextlib.suppress(OSError, EOFError, ValueError, LookupError, asyncio.TimeoutError):
                reader, writer = await client.connect(f"http://{self._plan.listen}", ASK_S)
                try:
                    writer.write(codec.request_bytes("HEAD", "/gateway", {"Host": self._plan.listen}, b""))
                    head = await asyncio.wait_for(client.read_head(reader), ASK_S)
                    if head.headers.get(GENERATION_HEADER.lower()) == wanted:
                        self._served, self._takes = self._plan.generation, True
                        return
                finally:
                    writer.close()
            await asyncio.sleep(ASK_AGAIN_S)
        how = f"does not serve its configuration after {TAKE_UP_S:g} s" if self.runs else "has ended"
        raise SandboxError(f"nginx was given a configuration and {how}: {self.last_words()}")

    def _command(self, file: str, *more: str) -> list[str]:
        return [self._program, "-p", self._place, "-e", "stderr", "-c", f"{self._place}/{file}", *more]

    async def _configure(self, members: PeerList) -> None:
        """Write its configuration, if nginx itself finds nothing wrong with it."""
        assert self._scope is not None
        new, log = f"{self._place}/new.conf", Log(f"{self._place}/test.log")
        answers = {f"{self._place}/{name}" for name in os.listdir(self._place) if name.startswith("gateway-")}
        for path in (new, log.path, *(answers - {gateway_file(self._place, self._served)})):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._plan = replace(self._plan, generation=self._plan.generation + 1, members=members)
        for path, text in (
            (gateway_file(self._place, self._plan.generation), gateway_answer(self._plan)),
            (new, render(self._plan)),
        ):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        try:
            test = await self._scope.spawn(self._command("new.conf", "-t"), env=ENVIRONMENT, cwd="/", log=log)
        except SpawnError as error:
            raise SandboxError(f"nginx cannot be started: {error}") from None
        if (ended := await test.wait()).code != 0:
            raise SandboxError(f"nginx refuses its configuration ({ended}): {log.tail(TAIL).strip()}")
        os.replace(new, f"{self._place}/nginx.conf")
