"""The server of one node: the engine behind one or two endpoints, from start to SIGTERM; its limit of open files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import math
import os
import resource
import signal
import socket
import sys
from typing import Any

from muster.sandbox.api.routes import Routes
from muster.sandbox.engine.engine import Engine
from muster.sandbox.engine.zygote import SandboxError
from muster.sandbox.gateway.balancer import KIND
from muster.sandbox.gateway.gateway import Gateway
from muster.sandbox.gateway.peers import reachable_address
from muster.sandbox.http.server import OpenConnections
from muster.sandbox.http.server import serve as serve_http
from muster.sandbox.settings import SandboxSettings, split_address

DRAIN_S = 3.0  # for responses to requests that are under way when the server is closed
FILES_PER_WORKER = 8
CONNECTION_FILES_MIN = 512
ERROR_LOG_INTERVAL_S, ERROR_KINDS_MAX = 60.0, 100
CONNECTIONS_MAX = 4096  # of one endpoint: a single client of NeMo-Skills may open 2,048
SHARES = 3  # connections of clients, of other nodes, and to other nodes


class ErrorLog:
    """Reports errors of the event loop: each kind once in ERROR_LOG_INTERVAL_S, with the number of those in between.

    While there are no more open files, every attempt to accept a connection is such an error.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}  # kind: time of its last report, errors since then

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        kind = f"{context['message']}: {type(error).__name__} {getattr(error, 'errno', '')}".rstrip()
        reported, since = self._seen.get(kind, (-math.inf, 0))
        if loop.time() - reported < ERROR_LOG_INTERVAL_S:
            self._seen[kind] = reported, since + 1
            return
        if len(self._seen) >= ERROR_KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = loop.time(), 0
        if since:
            print(f"muster sandbox: {since} more errors since the last report: {kind}", file=sys.stderr, flush=True)
        loop.default_exception_handler(context)


class SandboxServer:
    """Serves between open() and close(), and leaves nothing behind."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.engine = Engine(settings)
        self._endpoints: list[OpenConnections] = []
        self._servers: list[asyncio.AbstractServer] = []
        self.gateway: Gateway | None = None
        self.port = self.listen_port = 0

    async def open(self) -> None:
        """Bind first (a port in use is the most common mistake), serve when the engine has tested its isolation."""
        settings = self.settings
        asyncio.get_running_loop().set_exception_handler(ErrorLog())
        self._connections_limit = allow_open_files(settings)
        bound = _bind(settings.host, settings.port)
        listening = _bind(*split_address(settings.listen)) if settings.listen is not None else None
        self.port = bound.getsockname()[1]
        try:
            await self.engine.open()
        except BaseException:
            for opened in (bound, listening):
                if opened is not None:
                    opened.close()
            raise
        try:
            await self._serve_all(bound, listening)
        except BaseException:
            await self.close()
            raise
        if settings.ready_file is not None:
            _publish(settings.ready_file, self.facts())

    async def _serve_all(self, bound: socket.socket, listening: socket.socket | None) -> None:
        """Serve the endpoint between nodes first: the gateway forwards requests to it."""
        if listening is not None:
            self.listen_port = listening.getsockname()[1]
            if self.settings.is_clustered:
                own = reachable_address(*listening.getsockname()[:2])
                self.gateway = Gateway(self.settings, bound, own, self._connections_limit)
            await self._serve(listening, self.settings.token)
        await (self._serve(bound, None) if self.gateway is None else self.gateway.open())

    async def _serve(self, bound: socket.socket, token: str | None) -> None:
        gateway = (self.gateway.balancer.overview, self.gateway.facts) if self.gateway else (None, None)
        routes = Routes(self.engine, token, *gateway)
        self._endpoints.append(OpenConnections(self._connections_limit))
        self._servers.append(await serve_http(routes, self._endpoints[-1], bound))

    def facts(self) -> dict[str, Any]:
        """Return the content of the ready file."""
        assert self.engine.pool.level is not None
        return {
            "url": f"http://{self.settings.host}:{self.port}",
            "port": self.port,
            "listen_port": self.listen_port,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "isolation": self.engine.pool.level.to_json(),
            "gateway": KIND if self.gateway else None,
        }

    async def close(self) -> None:
        """Stop accepting, end running programs with reason `stopped`, send their responses, end all processes."""
        for server in self._servers:
            server.close()
        self.engine.admission.close()
        for worker in list(self.engine.pool.workers.values()):
            worker.kill("stopped")
        if self.gateway is not None:
            await self.gateway.close()
        for connection in [one for connections in self._endpoints for one in connections]:
            connection.finish()
        end = asyncio.get_running_loop().time() + DRAIN_S
        while any(map(len, self._endpoints)) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        await self.engine.close()
        if self.settings.ready_file is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.settings.ready_file)


def allow_open_files(settings: SandboxSettings) -> int:
    """Raise the soft limit of open files to what this server can use; return the connections that an endpoint may have.

    Raise SandboxError if the hard limit is too low for the workers and sessions.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = FILES_PER_WORKER * (settings.workers_min + settings.workers_max + settings.sessions_max)
    least, wanted = own + CONNECTION_FILES_MIN, own + CONNECTION_FILES_MIN + SHARES * CONNECTIONS_MAX
    if hard != resource.RLIM_INFINITY and least > hard:
        raise SandboxError(
            f"{least} open files are needed, {hard} are allowed: use fewer workers or sessions, or raise ulimit -n"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = wanted if soft == resource.RLIM_INFINITY else soft
    return min(CONNECTIONS_MAX, (left - own) // SHARES)


def _bind(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=4096)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise SandboxError(f"port {port} of {address} {reason}") from None


def _publish(path: str, facts: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "w") as file:
        json.dump(facts, file)
    os.replace(temporary, path)


async def serve(settings: SandboxSettings, announce: Any = None) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; return the exit code. `announce` is called with the ready server."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(signum, stop.set)
    server = SandboxServer(settings)
    server.engine.on_supervisor_lost = stop.set
    opening = asyncio.ensure_future(server.open())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        return 0
    try:
        opening.result()
    except SandboxError as error:
        stopping.cancel()
        print(f"muster sandbox: {error}", file=sys.stderr, flush=True)
        return 1
    if announce is not None:
        announce(server)
    await stopping
    await server.close()
    if server.engine.is_lost:
        print(
            "muster sandbox: its supervisor was killed: the server has to be started again", file=sys.stderr, flush=True
        )
        return 1
    return 0
