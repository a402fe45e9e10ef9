"""The endpoint of a cluster's node: all sandboxes of the cluster behind this node's loopback port.

state      leaves on                                          to
python     nginx is there, and takes our configuration        nginx
nginx      it has ended                                       python, and nginx is started again
nginx      it does not take new members                       python, for the new members; nginx answers what it has,
                                                              ends, and is started again
(both)     new members: balancer.py has them at once, nginx by a reload that drops nothing

The port's socket is ours, and nginx is given it, so that nobody is ever refused a connection: while nginx is away, this
server takes them itself (balancer.py), by the same rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import resource
import socket
import sys
from typing import Any

from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.gateway.balancer import Balancer
from muster.sandbox.gateway.nginx_config import GatewayPlan, find_nginx
from muster.sandbox.gateway.nginx_process import NginxProcess
from muster.sandbox.gateway.peers import PeerList, PeerWatch
from muster.sandbox.http.server import OpenConnections, serve
from muster.sandbox.settings import SandboxSettings

DRAIN_S = 3.0
CANCEL_AGAIN_S = 0.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # before nginx is started again
CONNECTIONS = 8192


class Gateway:
    """Opened, it serves; closed, it leaves nothing. The socket is the caller's to bind and ours to close."""

    def __init__(self, settings: SandboxSettings, bound: socket.socket, own: str, connections_most: int) -> None:
        """`own`: ADDRESS:PORT of this node's endpoint between nodes."""
        assert settings.members_file is not None and settings.token is not None
        self._settings, self._bound, self._own = settings, bound, own
        self.balancer = Balancer(f"http://{own}", settings.token, settings.shared_scratch)
        self._watch = PeerWatch(settings.members_file, self._on_members, self._on_refused)
        self._connections = OpenConnections(connections_most)
        self._server: asyncio.AbstractServer | None = None
        self._nginx: NginxProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._without_nginx: str | None = None  # why this server balances although there is an nginx
        self._news = asyncio.Event()  # there are other members: worth another try of an nginx that refused them
        self.balancer.problem = lambda: self.problem

    @property
    def kind(self) -> str:
        return "nginx" if self._nginx is not None and self._nginx.serves else "python"

    @property
    def problem(self) -> str | None:
        """Why this endpoint does not serve what the members file says by what it should; None when it does."""
        found = [words for words in (self._watch.problem, self._without_nginx) if words is not None]
        return "; ".join(found) or None

    def facts(self) -> dict[str, Any]:
        """For /health."""
        members = self.balancer.members
        return {
            "kind": self.kind,
            "version": members.version,
            "members": len(members.endpoints),
            "problem": self.problem,
        }

    async def open(self) -> None:
        """Serving when this returns; by nginx where there is one that works."""
        await self._watch.look()
        program = find_nginx() if self._settings.gateway != "python" else None
        if program is None:
            if self._settings.gateway == "nginx":
                raise SandboxError("gateway is nginx, and there is none here: install it, or let gateway be auto")
            await self._serve_ourselves()
        else:
            await self._open_nginx(program)
        self._tasks.append(asyncio.create_task(self._watch.forever()))

    async def _open_nginx(self, program: str) -> None:
        self._nginx = NginxProcess(program, self._bound, self._plan(), self._settings.scratch_dir)
        try:
            await self._nginx.start(self._watch.members)
        except SandboxError as error:
            if self._settings.gateway == "nginx":
                raise
            self._do_without(str(error))
            if not self._watch.members.endpoints:  # it is no list of members that it refuses: it does not work here
                await self._nginx.close(0.0)
                self._nginx = None
            await self._serve_ourselves()
        if self._nginx is not None:
            self._tasks.append(asyncio.create_task(self._keep(self._nginx)))

    def _plan(self) -> GatewayPlan:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        host, port = self._bound.getsockname()[:2]
        return GatewayPlan(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            self._own,
            self._settings.token or "",
            "",
            self._settings.max_timeout_s,
            own_first=self._settings.shared_scratch,
            user=f"{pwd.getpwuid(0).pw_name} {grp.getgrgid(0).gr_name}" if os.getuid() == 0 else None,
            connections=CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, max(64, soft - 64)),
        )

    async def close(self) -> None:
        """What is being answered has a few seconds; then everything goes."""
        pending = set(self._tasks)
        while pending:  # before Python 3.12, wait_for can lose a cancellation: then the next one ends it
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        self._stop_serving()
        for connection in self._connections:
            connection.finish()
        end = asyncio.get_running_loop().time() + DRAIN_S
        while len(self._connections) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        self.balancer.close()
        if self._nginx is not None:
            await self._nginx.close(DRAIN_S)
        self._bound.close()

    # -- members ----------------------------------------------------------------------------------------------------

    def _on_refused(self, words: str) -> None:
        _say(f"members refused: {words}; those of version {self.balancer.members.version} stay")

    async def _on_members(self, members: PeerList) -> None:
        """nginx takes them first, so that both have the same. If it does not, this server serves them without it: an
        endpoint that goes on with old members would have sessions at two nodes."""
        refusal = await self._refusal(members)
        await self.balancer.take(members)
        self._news.set()
        if refusal is not None:
            await self._leave_nginx(refusal)

    async def _refusal(self, members: PeerList) -> str | None:
        """Why nginx does not serve these members; None when it does, or when there is none that serves."""
        if self._nginx is not None:
            try:
                await self._nginx.reload(members)
            except (SandboxError, OSError) as error:
                return str(error)
        return None

    async def _leave_nginx(self, why: str) -> None:
        assert self._nginx is not None
        self._do_without(why)
        await self._serve_ourselves()
        self._nginx.leave()

    def _do_without(self, why: str) -> None:
        """Show why nginx does not serve; log it once, also where it refuses one version of the list after another."""
        if why != self._without_nginx:
            self._without_nginx = why
            version = self.balancer.members.version
            _say(f"version {version} of the members: {why}; this server balances until nginx serves again")

    # -- who serves -------------------------------------------------------------------------------------------------

    async def _keep(self, nginx: NginxProcess) -> None:
        """Start it again whenever it has ended; until then this server takes its connections."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_S
        while True:
            if nginx.runs:
                began = loop.time()
                await self._until_ended(nginx)
                if loop.time() - began > LONGEST_PAUSE_S:
                    pause = FIRST_PAUSE_S
            await self._serve_ourselves()
            self._news.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            if await self._started(nginx):
                self._without_nginx = None
                self._stop_serving()

    async def _until_ended(self, nginx: NginxProcess) -> None:
        ended = await nginx.wait()
        if nginx.was_left:
            return  # and why, was said
        self._without_nginx = f"nginx {ended}"
        _say(f"nginx {ended}; this server balances until it is started again\n{nginx.last_words()}".strip())

    async def _started(self, nginx: NginxProcess) -> bool:
        """Whether it serves the members there are now."""
        members = self.balancer.members
        try:
            await nginx.start(members)
        except (SandboxError, OSError) as error:
            self._do_without(str(error))
            return False
        if members != self.balancer.members:  # they have changed meanwhile
            refusal = await self._refusal(self.balancer.members)
            if refusal is not None:
                await self._leave_nginx(refusal)
                return False
        return True

    async def _serve_ourselves(self) -> None:
        """A connection is one request's where nginx may take over: nobody may send the next when we leave."""
        if self._server is not None:
            return
        keep = self._nginx is None
        self._server = await serve(self.balancer, self._connections, self._bound.dup(), keep)

    def _stop_serving(self) -> None:
        """No new connections; those that are there end with the answer they wait for."""
        if self._server is not None:
            self._server.close()
            self._server = None


def _say(words: str) -> None:
    print(f"muster sandbox: {words}", file=sys.stderr, flush=True)
