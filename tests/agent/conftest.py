"""A listener that does the leader's half of the handshake, a proxy that records all messages, and leaders."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.agent.control.channel import Channel, accept
from muster.agent.control.connections import Connections
from muster.agent.job import Identity, Job
from muster.rundir import RunPaths, create_exclusive, write_json

DEADLINE_S = 120.0
TOKEN = b"the-run's-own-secret"


def identity(directory: Path, rank: int) -> Identity:
    """Return the identity of an agent of a new run in the directory."""
    run = RunPaths(str(directory))
    attempt = run.attempt(0)
    os.makedirs(os.path.dirname(attempt.node_record(rank)), exist_ok=True)
    write_json(run.job, {**dict.fromkeys(Job.__dataclass_fields__), "groups": [], "gather_timeout": 60.0, "segment": 1})
    return Identity(rank, f"n{rank}", run, attempt, local=True)


async def serve_as_leader(agent: Identity, term: int, tasks: list[asyncio.Future[None]]) -> Connections:
    """Listen as the leader of a term whose address is published; connections are served by `tasks`."""
    connections = Connections(agent, TOKEN)
    connections.on_task = lambda work: tasks.append(asyncio.ensure_future(work))
    record = {"term": term, "rank": agent.rank, "addresses": ["127.0.0.1"], "port": await connections.listen()}
    assert create_exclusive(agent.attempt.leader(term), record)
    return connections


class Listener:
    """Serves like the leader; keeps what `accept` returned or raised for each connection, in order."""

    def __init__(self, token: bytes = TOKEN) -> None:
        self.token = token
        self._answers: asyncio.Queue[tuple[Channel, dict[str, Any]] | BaseException | None] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self, host: str | None = "127.0.0.1", port: int = 0, **listening: Any) -> Listener:
        at = {} if "sock" in listening else {"host": host, "port": port}
        self._server = await asyncio.start_server(self._serve, **at, **listening)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            self._answers.put_nowait(await accept(reader, writer, self.token))
        except BaseException as error:
            self._answers.put_nowait(error)

    async def answer(self) -> tuple[Channel, dict[str, Any]] | None:
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
