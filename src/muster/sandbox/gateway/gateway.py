"""The endpoint of a cluster's node: all sandboxes of the cluster behind this node's loopback port."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from muster.sandbox.gateway.balancer import KIND, Balancer
from muster.sandbox.gateway.peers import PeerWatch
from muster.sandbox.http.server import OpenConnections, serve
from muster.sandbox.settings import SandboxSettings

DRAIN_S = 3.0  # for responses to requests that are under way when the gateway is closed
CANCEL_RETRY_S = 0.5


class Gateway:
    """Serves between open() and close(). The caller binds the socket, the gateway closes it."""

    def __init__(self, settings: SandboxSettings, bound: socket.socket, own: str, connections_limit: int) -> None:
        """`own`: ADDRESS:PORT of this node's endpoint between nodes."""
        assert settings.members_file is not None and settings.token is not None
        self._bound = bound
        self.balancer = Balancer(f"http://{own}", settings.token, settings.shared_scratch)
        self._watch = PeerWatch(settings.members_file, self.balancer.set_members, self._log_rejection)
        self.balancer.problem = lambda: self._watch.problem
        self._connections = OpenConnections(connections_limit)
        self._server: asyncio.AbstractServer | None = None
        self._polling: asyncio.Task[None] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the state of the gateway for /health."""
        members = self.balancer.members
        return {
            "kind": KIND,
            "version": members.version,
            "members": len(members.endpoints),
            "problem": self._watch.problem,
        }

    async def open(self) -> None:
        await self._watch.poll()
        self._server = await serve(self.balancer, self._connections, self._bound)
        self._polling = asyncio.create_task(self._watch.poll_forever())

    async def close(self) -> None:
        """Finish the requests under way within DRAIN_S, then close all connections."""
        pending = {self._polling} if self._polling is not None else set()
        while pending:  # before Python 3.12, wait_for can lose a cancellation: cancel again
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=CANCEL_RETRY_S)
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.finish()
        end = asyncio.get_running_loop().time() + DRAIN_S
        while len(self._connections) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        self.balancer.close()
        self._bound.close()

    def _log_rejection(self, reason: str) -> None:
        kept = self.balancer.members.version
        print(f"muster sandbox: members refused: {reason}; those of version {kept} stay", file=sys.stderr, flush=True)
