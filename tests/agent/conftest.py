"""A listener that does the leader's half of the handshake, a proxy that records all messages, and leaders."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from muster.agent.control.channel import Channel, ChannelReader, accept, listen, serve
from muster.agent.control.codec import Message, MessageProtocol
from muster.agent.control.connections import Connections
from muster.agent.control.messages import CONTROL_PROTOCOL, Greeting
from muster.agent.job import Identity, Job
from muster.agent.leader.inbox import Inbox, WorkFailed
from muster.lifecycle.topology import UNKNOWN_LOCATION
from muster.rundir import RunPaths, create_exclusive, write_json

DEADLINE_S = 120.0
GREETING = Greeting(node_index=3, host="n3", attempt=0, location=UNKNOWN_LOCATION, membership=None, checking=False)
TOKEN = b"the-run's-own-secret"


def identity(directory: Path, node_index: int) -> Identity:
    """Return the identity of an agent of a new run in the directory."""
    run = RunPaths(str(directory))
    attempt = run.attempt(0)
    os.makedirs(os.path.dirname(attempt.node_record(node_index)), exist_ok=True)
    values = {"groups": [], "gather_timeout": 60.0, "segment": 1, "nodes": 3, "spares": 0}
    write_json(run.job, {**dict.fromkeys(Job.__dataclass_fields__), "node_checks": "none", "node_check": {}, **values})
    return Identity(node_index, f"n{node_index}", run, attempt, local=True)


E = TypeVar("E")


async def next_event(inbox: Inbox, kind: type[E]) -> E:
    """Return the next event of this type; others are dropped."""
    while True:
        event = await asyncio.wait_for(inbox.next(), DEADLINE_S)
        assert not isinstance(event, WorkFailed), event
        if isinstance(event, kind):
            return event


async def serve_as_leader(agent: Identity, term: int, inbox: Inbox) -> Connections:
    """Listen as the leader of a term whose address is published."""
    connections = Connections(agent, TOKEN, inbox)
    record = {"term": term, "rank": agent.node_index, "addresses": ["127.0.0.1"], "port": await connections.listen()}
    assert create_exclusive(agent.attempt.leader(term), record)
    return connections


class Listener:
    """Serves like the leader; keeps what `accept` returned or raised for each connection, in order."""

    def __init__(self, protocol: MessageProtocol = CONTROL_PROTOCOL) -> None:
        self._protocol = protocol
        self._answers: asyncio.Queue[tuple[Channel, Message] | BaseException | None] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, loopback_only: bool = True) -> Listener:
        listener = listen(loopback_only)
        self.port = listener.getsockname()[1]
        self._server = await serve(
            lambda reader, writer: self._tasks.append(asyncio.create_task(self._serve(reader, writer))), listener
        )
        return self

    async def _serve(self, reader: ChannelReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            self._answers.put_nowait(await accept(reader, writer, TOKEN, self._protocol))
        except BaseException as error:
            self._answers.put_nowait(error)

    async def answer(self) -> tuple[Channel, Message] | None:
        """Return the result of the next connection; raise what `accept` raised."""
        answer = await asyncio.wait_for(self._answers.get(), DEADLINE_S)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def channel(self) -> Channel:
        answer = await self.answer()
        assert answer is not None, "the connection was refused"
        return answer[0]

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()


class Wire:
    """Forwards each line to the leader and back, and records it. `hold` may delay a line."""

    def __init__(self, host: str, port: int, leader_port: int, hold: Callable[[str, bytes], Awaitable[None]]) -> None:
        self.host, self.port, self._leader_port, self._hold = host, port, leader_port, hold
        self.heard: list[tuple[str, bytes]] = []

    async def start(self) -> Wire:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leader_reader, leader_writer = await asyncio.open_connection("127.0.0.1", self._leader_port)
        await asyncio.gather(
            self._forward("agent", reader, leader_writer), self._forward("lead", leader_reader, writer)
        )

    async def _forward(self, side: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self.heard.append((side, line))
                await self._hold(side, line)
                writer.write(line)
        writer.close()

    def close(self) -> None:
        self._server.close()


@pytest.fixture
async def leader() -> AsyncIterator[Listener]:
    listener = await Listener().start()
    yield listener
    await listener.close()


@pytest.fixture
async def wire(leader: Listener) -> AsyncIterator[Callable[..., Awaitable[Wire]]]:
    """Return a function that makes a wire to the leader on a given address."""
    wires: list[Wire] = []

    async def make(host: str = "127.0.0.1", port: int = 0, hold: Any = lambda side, line: asyncio.sleep(0)) -> Wire:
        wires.append(await Wire(host, port, leader.port, hold).start())
        return wires[-1]

    yield make
    for each in wires:
        each.close()
