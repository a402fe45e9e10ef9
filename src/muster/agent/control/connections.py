"""The leader's connections: one for each authenticated agent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from muster.agent.control.channel import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    MESSAGE_MAX_BYTES,
    Channel,
    accept,
    encode,
    listen,
)
from muster.agent.job import Identity

BROADCAST_BATCH = 64  # peers at a time: 20 MB are queued for a message that names 10,000 endpoints


class Connections:
    """Accepts the connections of agents, receives their messages, and sends messages by rank."""

    def __init__(self, identity: Identity, token: bytes) -> None:
        self._identity, self._token = identity, token
        self._channels: dict[int, Channel] = {}
        self._peer_connected = asyncio.Event()  # an agent of another node has connected
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._echoed: dict[int, float] = {}  # of connected agents: when the last answered heartbeat was sent
        self._last_echo_of_lost: dict[int, float] = {}  # the same of lost agents
        self._peer_times: dict[int, float] = {}  # each agent's own clock in its last heartbeat
        self._farewell: tuple[str, dict[str, Any]] | None = None  # the message with which all agents were released
        self._echo_changed = asyncio.Event()  # a heartbeat was answered, or an agent was lost
        self.on_task: Callable[[Coroutine[Any, Any, None]], None] = lambda work: None
        self.on_join: Callable[[int, dict[str, Any], float], None] = lambda rank, greeting, sent: None
        self.refusal: Callable[[int, str], str | None] = lambda rank, host: None  # the reason not to admit an agent
        self.on_answer: Callable[[int, float | None, int], None] = lambda rank, sent, version: None
        self.on_message: Callable[[int, dict[str, Any]], None] = lambda rank, message: None
        self.on_loss: Callable[[int, str], None] = lambda rank, reason: None

    async def listen(self) -> int:
        """Start to accept connections and return the port."""
        listener = listen(loopback_only=self._identity.local)
        port: int = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._on_connection, sock=listener, limit=MESSAGE_MAX_BYTES)
        return port

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        self._channels[rank].send(kind, **fields)

    def send_all(self, kind: str, **fields: Any) -> None:
        for channel in self._channels.values():
            channel.send(kind, **fields)

    async def send_each(self, ranks: Sequence[int], kind: str, **fields: Any) -> None:
        """Send a long message to many agents: encoded once, and in batches, so that heartbeats pass in between."""
        line = encode(kind, fields)
        for first in range(0, len(ranks), BROADCAST_BATCH):
            batch = [self._channels[rank] for rank in ranks[first : first + BROADCAST_BATCH]]
            for channel in batch:
                channel.send_line(line)
            await asyncio.gather(*(channel.flush() for channel in batch))

    async def beat(self) -> None:
        """Send heartbeats with the time of sending, which agents return: it dates the answer on this node's clock."""
        while True:
            self._beat_once()
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    def _beat_once(self) -> float:
        """Send one heartbeat, with the agent's own last time: it learns until when its leader has heard from it."""
        now = time.monotonic()
        for rank, channel in self._channels.items():
            channel.send("beat", at=now, heard=self._peer_times.get(rank))
        return now

    async def wait_for_all_answers(self) -> None:
        """Send a heartbeat; return when every agent has answered it or has been lost."""
        sent = self._beat_once()
        while any(echoed < sent for echoed in self._echoed.values()):
            self._echo_changed.clear()
            await self._echo_changed.wait()

    async def ask(self, kind: str, timeout: float) -> list[Any]:
        """Send to all agents; return the answers (messages of the same kind) that came within `timeout` seconds."""
        connected = [rank for rank, channel in self._channels.items() if channel.open]
        self._answers = {rank: asyncio.get_running_loop().create_future() for rank in connected}
        for rank in self._answers:
            self.send(rank, kind)
        done, _ = await asyncio.wait(self._answers.values(), timeout=timeout)
        return [answer.result() for answer in done]

    def answered(self, rank: int, answer: Any) -> None:
        if rank in self._answers and not self._answers[rank].done():
            self._answers[rank].set_result(answer)

    def last_heard(self, rank: int) -> float:
        """Return when the last heartbeat that this lost agent answered was sent."""
        return self._last_echo_of_lost[rank]

    async def wait_for_peer(self, seconds: float | None) -> list[str]:
        """Wait up to `seconds` for an agent of another node; return this node's addresses that such agents reached."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._peer_connected.wait(), seconds)
        return [channel.local_address for rank, channel in self._channels.items() if rank != self._identity.rank]

    async def release(self, kind: str = "bye", **fields: Any) -> None:
        """Release all agents: "bye" at the end of the run, "retire" to another leader."""
        self._farewell = kind, fields
        self.send_all(kind, **fields)
        await asyncio.gather(*(channel.flush() for channel in self._channels.values()))
        self._server.close()

    def close_all(self) -> None:
        """Close all connections without a message."""
        self._server.close()
        for channel in self._channels.values():
            channel.close()

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.on_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one agent's connection, from the handshake to its end."""
        began = time.monotonic()
        accepted = await accept(reader, writer, self._token)
        if accepted is None:
            return
        channel, greeting = accepted
        rank: int = greeting.get("rank", -1)
        stale = greeting.get("attempt") != self._identity.attempt.number or "host" not in greeting
        reason = None if stale else self.refusal(rank, greeting["host"])
        if stale or reason is not None or rank in self._channels:
            channel.send("bye" if stale else "refused", reason=reason or f"rank {rank} is connected already")
            channel.close()
            return
        if self._farewell is not None:  # it connected just before the others were released
            kind, fields = self._farewell
            channel.send(kind, **fields)
            await channel.flush()
            channel.close()
            return
        self._channels[rank] = channel
        if rank != self._identity.rank:
            self._peer_connected.set()
        self._echoed[rank] = began
        self.on_join(rank, greeting, began)
        while (message := await channel.receive()) is not None:
            if message["type"] == "beat":
                self._peer_times[rank] = message["time"]
                self._on_heartbeat(rank, message["at"], message["version"])
            else:
                self.on_message(rank, message)
        channel.close()
        self._last_echo_of_lost[rank] = self._echoed.pop(rank)
        self.answered(rank, None)
        silent = f"fell silent: no heartbeat for {HEARTBEAT_TIMEOUT_S:g} s"
        self.on_loss(rank, silent if channel.timed_out else "is gone: its connection ended")
        self._echo_changed.set()

    def _on_heartbeat(self, rank: int, sent: float | None, version: int) -> None:
        if sent is not None:
            self._echoed[rank] = sent
            self._echo_changed.set()
        self.on_answer(rank, sent, version)
