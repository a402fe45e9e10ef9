"""The leader's connections: one for each agent that has proved to know the run's token."""

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
    line_of,
    listen,
)
from muster.agent.job import Identity

SENT_AT_ONCE = 64  # of a message that is sent to many: 20 MB, where it names 10,000 endpoints


class Connections:
    """Listens, admits agents, hears them, and speaks to them by rank."""

    def __init__(self, identity: Identity, token: bytes) -> None:
        self._identity, self._token = identity, token
        self._channels: dict[int, Channel] = {}
        self._peer_connected = asyncio.Event()  # an agent of another node has connected
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._echoed: dict[int, float] = {}  # of those who are there: when the beat was sent that was answered last
        self._last_echo_of_lost: dict[int, float] = {}  # the same of those who are lost
        self._heard: dict[int, float] = {}  # what each said last of its own time
        self._farewell: tuple[str, dict[str, Any]] | None = None  # what was said to everybody as they were let go
        self._echo = asyncio.Event()  # there is another one, or somebody is lost
        self.on_task: Callable[[Coroutine[Any, Any, None]], None] = lambda work: None
        self.on_join: Callable[[int, dict[str, Any], float], None] = lambda rank, greeting, spoken: None
        self.refusal: Callable[[int, str], str | None] = lambda rank, host: None  # why this one may not join
        self.on_answer: Callable[[int, float | None, int], None] = lambda rank, sent, version: None
        self.on_message: Callable[[int, dict[str, Any]], None] = lambda rank, message: None
        self.on_loss: Callable[[int, str], None] = lambda rank, how: None

    async def listen(self) -> int:
        """Returns the port."""
        listener = listen(loopback_only=self._identity.local)
        port: int = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._accepted, sock=listener, limit=MESSAGE_MAX_BYTES)
        return port

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        self._channels[rank].send(kind, **fields)

    def send_all(self, kind: str, **fields: Any) -> None:
        for channel in self._channels.values():
            channel.send(kind, **fields)

    async def send_each(self, ranks: Sequence[int], kind: str, **fields: Any) -> None:
        """Send a long message to many: encoded once, and to a part of them at a time, so that little is queued here and
        heartbeats pass in between."""
        line = line_of(kind, fields)
        for first in range(0, len(ranks), SENT_AT_ONCE):
            part = [self._channels[rank] for rank in ranks[first : first + SENT_AT_ONCE]]
            for channel in part:
                channel.send_line(line)
            await asyncio.gather(*(channel.flush() for channel in part))

    async def beat(self) -> None:
        """Say when we speak; whoever hears it answers with that time, so that we know what its answer is worth."""
        while True:
            self._beat_once()
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    def _beat_once(self) -> float:
        """With what each said last of its own time: so it knows until when we have heard of it."""
        now = time.monotonic()
        for rank, channel in self._channels.items():
            channel.send("beat", at=now, heard=self._heard.get(rank))
        return now

    async def all_answer(self) -> None:
        """Returns when everybody has answered a beat that is sent now, or has been found to be lost."""
        asked = self._beat_once()
        while any(echoed < asked for echoed in self._echoed.values()):
            self._echo.clear()
            await self._echo.wait()

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

    def last_heard(self, rank: int) -> float:
        """When the beat was sent that this member, who is lost, answered last."""
        return self._last_echo_of_lost[rank]

    async def wait_for_peer(self, seconds: float | None) -> list[str]:
        """Our own addresses that agents of other nodes have reached, once there is one or the time (if any) is over."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._peer_connected.wait(), seconds)
        return [channel.local_address for rank, channel in self._channels.items() if rank != self._identity.rank]

    async def release(self, word: str = "bye", **fields: Any) -> None:
        """Everybody may go: for good, or to another leader."""
        self._farewell = word, fields
        self.send_all(word, **fields)
        await asyncio.gather(*(channel.flush() for channel in self._channels.values()))
        self._server.close()

    def close_all(self) -> None:
        """End every connection without a word."""
        self._server.close()
        for channel in self._channels.values():
            channel.close()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.on_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent's connection, from handshake to end."""
        spoken = time.monotonic()
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
        if self._farewell is not None:  # it connected just before the others were let go
            word, fields = self._farewell
            channel.send(word, **fields)
            await channel.flush()
            channel.close()
            return
        self._channels[rank] = channel
        if rank != self._identity.rank:
            self._peer_connected.set()
        self._echoed[rank] = spoken
        self.on_join(rank, greeting, spoken)
        while (message := await channel.receive()) is not None:
            if message["type"] == "beat":
                self._heard[rank] = message["time"]
                self._answered_beat(rank, message["at"], message["version"])
            else:
                self.on_message(rank, message)
        channel.close()
        self._last_echo_of_lost[rank] = self._echoed.pop(rank)
        self.answered(rank, None)
        silent = f"fell silent: no heartbeat for {HEARTBEAT_TIMEOUT_S:g} s"
        self.on_loss(rank, silent if channel.timed_out else "is gone: its connection ended")
        self._echo.set()

    def _answered_beat(self, rank: int, sent: float | None, version: int) -> None:
        if sent is not None:
            self._echoed[rank] = sent
            self._echo.set()
        self.on_answer(rank, sent, version)
