"""The process of an endpoint's proxy on one node, from start to SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sys
from typing import Any

from muster.endpoint.proxy import EndpointProxy, ReplicaLost
from muster.endpoint.settings import EndpointSettings
from muster.sandbox.gateway.peers import PeerWatch
from muster.sandbox.http.server import BACKLOG, OpenConnections, serve

CONNECTIONS_MAX = 8192  # of clients: a rollout driver opens thousands
FILES_WANTED = 3 * CONNECTIONS_MAX  # a client's connection, one to a replica, and idle ones
DRAIN_S = 3.0  # for requests that are under way when the proxy is stopped
DRAIN_POLL_S = 0.02


class EndpointServer:
    """Serves between open() and close()."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self.proxy = EndpointProxy(settings)
        self._watch = PeerWatch(settings.members_file, self.proxy.set_members, self._log_rejection)
        self._connections = OpenConnections(CONNECTIONS_MAX)
        self._server: asyncio.AbstractServer | None = None
        self._polling: asyncio.Task[None] | None = None
        self.port = 0

    async def open(self) -> None:
        """Bind and serve; raise OSError if the port is in use."""
        _allow_open_files()
        bound = socket.create_server((self._settings.host, self._settings.port), backlog=BACKLOG)
        self.port = bound.getsockname()[1]
        self._server = await serve(self.proxy, self._connections, bound)
        self._polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        await self._watch.poll()
        await self._watch.poll_forever()

    async def close(self) -> None:
        """Stop accepting, finish the requests under way within DRAIN_S, and close all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.finish()
        end = asyncio.get_running_loop().time() + DRAIN_S
        while len(self._connections) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(DRAIN_POLL_S)
        for connection in self._connections:
            connection.abort()
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await self.proxy.close()

    def _log_rejection(self, reason: str) -> None:
        print(f"muster endpoint: members refused: {reason}", file=sys.stderr, flush=True)


def _allow_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop; a lost replica is no defect, so one line is enough."""
    error = context.get("exception")
    if isinstance(error, ReplicaLost):
        print(f"muster endpoint: {error}", file=sys.stderr, flush=True)
    else:
        loop.default_exception_handler(context)


async def serve_endpoint(settings: EndpointSettings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    loop.set_exception_handler(_log_error)
    server = EndpointServer(settings)
    try:
        await server.open()
    except OSError as error:
        print(f"muster endpoint: port {settings.port} of {settings.host}: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"muster endpoint: {settings.name} at http://{settings.host}:{server.port}", flush=True)
    await stop.wait()
    await server.close()
    return 0
