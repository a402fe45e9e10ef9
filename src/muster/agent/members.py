"""The lead's connections: one for each agent that has proved to know the run's token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from muster.agent.channel import LINE_LIMIT, SILENCE_S, Channel, accept, listen
from muster.agent.job import Identity


class Members:
    """Listens, admits agents, hears them, and speaks to them by rank."""

    def __init__(self, identity: Identity, nodes: int, token: bytes) -> None:
        self._identity, self._nodes, self._token = identity, nodes, token
        self._channels: dict[int, Channel] = {}
        self._company = asyncio.Event()  # an agent of another node has connected
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.on_task: Callable[[Coroutine[Any, Any, None]], None] = lambda work: None
        self.on_join: Callable[[int, str], None] = lambda rank, host: None
        self.on_message: Callable[[int, dict[str, Any]], None] = lambda rank, message: None
        self.on_loss: Callable[[int, str], None] = lambda rank, how: None

    async def listen(self) -> int:
        """Returns the port."""
        listener = listen(loopback_only=self._identity.local)
        port: int = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._accepted, sock=listener, limit=LINE_LIMIT)
        return port

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        self._channels[rank].send(kind, **fields)

    async def ask(self, kind: str, timeout: float) -> list[Any]:
        """Send to everybody; what they answered in a message of the same kind, as far as it came in time."""
        here = [rank for rank, channel in self._channels.items() if channel.open]
        self._answers = {rank: asyncio.get_running_loop().create_future() for rank in here}
        for rank in self._answers:
            self.send(rank, kind)
        done, _ = await asyncio.wait(self._answers.values(), timeout=timeout)
        return [answer.result() for answer in done]

    def answered(self, rank: int, answer: Any) -> None:
        if rank in self._answers and not self._answers[rank].done():
            self._answers[rank].set_result(answer)

    async def company(self, seconds: float | None) -> list[str]:
        """Our own addresses that agents of other nodes have reached, once there is one or the time (if any) is over."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._company.wait(), seconds)
        return [channel.local_address for rank, channel in self._channels.items() if rank != self._identity.rank]

    async def dismiss(self) -> None:
        """Everybody may go."""
        for channel in self._channels.values():
            channel.send("bye")
        await asyncio.gather(*(channel.flush() for channel in self._channels.values()))
        self._server.close()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.on_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent's connection, from handshake to end."""
        accepted = await accept(reader, writer, self._token)
        if accepted is None:
            return
        channel, greeting = accepted
        rank: int = greeting.get("rank", -1)
        stale = greeting.get("attempt") != self._identity.attempt.number
        if stale or rank not in range(self._nodes) or rank in self._channels or "host" not in greeting:
            channel.send("bye")
            channel.close()
            return
        self._channels[rank] = channel
        if rank != self._identity.rank:
            self._company.set()
        self.on_task(channel.beat())
        self.on_join(rank, greeting["host"])
        while (message := await channel.receive()) is not None:
            self.on_message(rank, message)
        channel.close()
        silent = f"fell silent: no heartbeat for {SILENCE_S:g} s"
        self.on_loss(rank, silent if channel.fell_silent else "is gone: its connection ended")
