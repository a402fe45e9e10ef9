"""The leader's connections: one for each authenticated agent. What happens to them is posted to the leader's inbox."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

from muster.agent.control.channel import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    Channel,
    ChannelReader,
    accept,
    listen,
    serve,
)
from muster.agent.control.codec import Message
from muster.agent.control.messages import (
    CONTROL_PROTOCOL,
    Dismissal,
    Greeting,
    Heartbeat,
    HeartbeatAnswer,
    Refusal,
)
from muster.agent.control.outbox import Outbox
from muster.agent.event_loop import sleep_by_monotonic_clock
from muster.agent.job import Identity

BROADCAST_BATCH = 64  # peers at a time: 20 MB are queued for a message that names 10,000 endpoints


@dataclass(frozen=True)
class AgentJoined:
    """An agent has connected and proved the run's token. `sent`: when the last message that it answered was sent."""

    greeting: Greeting
    sent: float


@dataclass(frozen=True)
class AgentRejected:
    """An agent was rejected, because another one is connected, or was, with the same node index."""

    greeting: Greeting
    reason: str


@dataclass(frozen=True)
class HeartbeatAnswered:
    """An agent answered the heartbeat sent at `sent`, or (None) reported the membership version that it knows."""

    node_index: int
    sent: float | None
    version: int


@dataclass(frozen=True)
class AgentMessage:
    """An agent sent any other message."""

    node_index: int
    message: Message


@dataclass(frozen=True)
class AgentLost:
    """The connection of an agent ended. `last_heard`: when the last heartbeat that it answered was sent."""

    node_index: int
    how: str
    last_heard: float
    isolated: bool = False  # all other nodes, at least two, have fallen silent: rather this node is cut off


ConnectionEvent = Union[AgentJoined, AgentRejected, HeartbeatAnswered, AgentMessage, AgentLost]


class ConnectionInbox(Protocol):
    """Takes the events of connections, in order, and runs their tasks."""

    def post(self, event: ConnectionEvent) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]: ...


class Connections:
    """Accepts the connections of agents, posts what they send, and sends messages by node index.

    An agent of another attempt, or with the node index of a connected one, is rejected here. For every other the owner
    of the inbox decides when it handles AgentJoined: it may call `refuse`. No AgentLost follows that.
    """

    def __init__(self, identity: Identity, token: bytes, inbox: ConnectionInbox) -> None:
        self._identity, self._token, self._inbox = identity, token, inbox
        self._channels: dict[int, Channel] = {}  # including those of lost agents
        self._peer_connected = asyncio.Event()  # an agent of another node has connected
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._echoed: dict[int, float] = {}  # of connected agents: when the last answered heartbeat was sent
        self._peer_times: dict[int, float] = {}  # each agent's own clock in its last heartbeat
        self._farewell: Message | None = None  # the message with which all agents were released
        self._echo_changed = asyncio.Event()  # a heartbeat was answered, or an agent was lost
        self._outbox = Outbox()

    async def listen(self) -> int:
        """Start to accept connections and return the port."""
        listener = listen(loopback_only=self._identity.local)
        port: int = listener.getsockname()[1]
        self._server = await serve(self._on_connection, listener)
        return port

    def send(self, node_index: int, message: Message) -> None:
        self._outbox.post(self._channels[node_index], message)

    def send_all(self, message: Message) -> None:
        """Send to all agents; encoded once."""
        line = CONTROL_PROTOCOL.server.encode(message)
        for channel in self._channels.values():
            self._outbox.post(channel, line)

    async def send_each(self, node_indexes: Sequence[int], message: Message) -> None:
        """Send a long message to many agents: encoded once, and in batches, so that heartbeats pass in between."""
        line = CONTROL_PROTOCOL.server.encode(message)
        for first in range(0, len(node_indexes), BROADCAST_BATCH):
            batch = [self._channels[node_index] for node_index in node_indexes[first : first + BROADCAST_BATCH]]
            for channel in batch:
                self._outbox.post(channel, line)
            await self._outbox.drain()
            await asyncio.gather(*(channel.flush() for channel in batch))

    async def beat(self) -> None:
        """Send heartbeats with the time of sending, which agents return: it dates the answer on this node's clock."""
        while True:
            self.beat_once()
            await sleep_by_monotonic_clock(HEARTBEAT_INTERVAL_S)

    def beat_once(self) -> float:
        """Send one heartbeat, with the agent's own last time: it learns until when its leader has heard from it."""
        now = time.monotonic()
        for node_index, channel in self._channels.items():
            self._outbox.post(channel, Heartbeat(now, self._peer_times.get(node_index)))
        return now

    async def wait_for_all_answers(self) -> None:
        """Send a heartbeat; return when every agent has answered it or has been lost."""
        sent = self.beat_once()
        while any(echoed < sent for echoed in self._echoed.values()):
            self._echo_changed.clear()
            await self._echo_changed.wait()

    async def ask(self, request: Message, timeout: float) -> list[Any]:
        """Send to all agents; return the answers (see `answered`) that came within `timeout` seconds."""
        connected = [node_index for node_index, channel in self._channels.items() if channel.open]
        self._answers = {node_index: asyncio.get_running_loop().create_future() for node_index in connected}
        for node_index in self._answers:
            self.send(node_index, request)
        done, _ = await asyncio.wait(self._answers.values(), timeout=timeout)
        return [answer.result() for answer in done]

    def answered(self, node_index: int, answer: Any) -> None:
        if node_index in self._answers and not self._answers[node_index].done():
            self._answers[node_index].set_result(answer)

    async def wait_for_peer(self, seconds: float | None) -> list[str]:
        """Wait up to `seconds` for an agent of another node; return this node's addresses that such agents reached."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._peer_connected.wait(), seconds)
        return [
            channel.local_address
            for node_index, channel in self._channels.items()
            if node_index != self._identity.node_index
        ]

    def refuse(self, node_index: int, reason: str) -> None:
        """Send the reason to an agent that has joined, and close its connection."""
        channel = self._channels.pop(node_index)
        self._forget(node_index)
        self._inbox.spawn(_reject(channel, Refusal(reason)))

    async def release(self, farewell: Message) -> None:
        """Release all agents: Dismissal at the end of the run, Retirement to another leader."""
        self._farewell = farewell
        self.send_all(farewell)
        await self._outbox.drain()
        await asyncio.gather(*(channel.flush() for channel in self._channels.values()))
        self._server.close()

    def close_all(self) -> None:
        """Close all connections without a message."""
        self._server.close()
        for channel in self._channels.values():
            channel.close()

    def _on_connection(self, reader: ChannelReader, writer: asyncio.StreamWriter) -> None:
        self._inbox.spawn(self._serve(reader, writer))

    async def _serve(self, reader: ChannelReader, writer: asyncio.StreamWriter) -> None:
        """Handle one agent's connection, from the handshake to its end."""
        began = time.monotonic()
        accepted = await accept(reader, writer, self._token, CONTROL_PROTOCOL)
        if accepted is None:
            return
        channel, greeting = accepted
        assert isinstance(greeting, Greeting)
        rejection = self._rejection(greeting) or self._farewell  # it may connect just before the others are released
        if isinstance(rejection, Refusal):
            self._inbox.post(AgentRejected(greeting, rejection.reason))
        if rejection is not None:
            await _reject(channel, rejection)
            return
        node_index = greeting.node_index
        self._channels[node_index] = channel
        if node_index != self._identity.node_index:
            self._peer_connected.set()
        self._echoed[node_index] = began
        self._inbox.post(AgentJoined(greeting, began))
        while (message := await channel.receive()) is not None and self._channels.get(node_index) is channel:
            self._on_message(node_index, message)
        if self._channels.get(node_index) is channel:  # else it was refused
            channel.close()
            silent = f"fell silent: no heartbeat for {HEARTBEAT_TIMEOUT_S:g} s"
            how = silent if channel.timed_out else channel.loss_reason
            isolated = channel.timed_out and self._is_isolated()
            self._inbox.post(AgentLost(node_index, how, self._echoed[node_index], isolated))
            self._forget(node_index)

    def _rejection(self, greeting: Greeting) -> Message | None:
        """Return the message with which an agent is rejected; None if it may join."""
        if greeting.attempt != self._identity.attempt.number:
            return Dismissal(0, None)
        node_index, host = greeting.node_index, greeting.host
        if node_index in self._channels:
            other = self._channels[node_index].peer
            return Refusal(f"{host} joined as node {node_index}, but {other} has joined as that node before")
        return None

    def _on_message(self, node_index: int, message: Message) -> None:
        if not isinstance(message, HeartbeatAnswer):
            self._inbox.post(AgentMessage(node_index, message))
            return
        self._peer_times[node_index] = message.time
        self._inbox.post(HeartbeatAnswered(node_index, message.at, message.version))
        if message.at is not None:
            self._echoed[node_index] = message.at
            self._echo_changed.set()

    def _is_isolated(self) -> bool:
        """Return whether no agent of another node, of at least two, has answered for half the heartbeat timeout."""
        own, silent_since = self._identity.node_index, time.monotonic() - HEARTBEAT_TIMEOUT_S / 2
        others = [echoed for node_index, echoed in self._echoed.items() if node_index != own]
        return len(others) > 1 and max(others) < silent_since

    def _forget(self, node_index: int) -> None:
        """Wait no more for answers of an agent. After its loss was posted: what waited for it comes later."""
        del self._echoed[node_index]
        self.answered(node_index, None)
        self._echo_changed.set()


async def _reject(channel: Channel, message: Message) -> None:
    channel.send(message)
    await channel.flush()
    channel.close()
