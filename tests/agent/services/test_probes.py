"""Readiness probes: when each succeeds, and the reason it gives until then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from muster.agent.services import probes


@pytest.fixture
async def server() -> AsyncIterator[Callable[[bytes], Any]]:
    """Start a server that answers every request with these bytes; return its port."""
    servers: list[asyncio.AbstractServer] = []

    async def begin(answer: bytes) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        port: int = servers[-1].sockets[0].getsockname()[1]
        return port

    yield begin
    for one in servers:
        one.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", None),
        (b"HTTP/1.0 302 Found\r\n\r\n", None),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "status 503"),
        (b"hello", "does not speak HTTP"),
        (b"", "does not speak HTTP"),
    ],
)
async def test_http_is_ready_with_an_answer_below_400(server: Any, answer: bytes, why: str | None) -> None:
    found = await probes.http("127.0.0.1", await server(answer), "/health")()
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("body", "ready"), [(b'{"status": "healthy"}', True), (b'{"status": "x"}', False), (b"[]", False)]
)
async def test_a_sandbox_is_ready_when_it_reports_itself_as_healthy(server: Any, body: bytes, ready: bool) -> None:
    port = await server(b"HTTP/1.1 200 OK\r\n\r\n" + body)
    assert (await probes.http("127.0.0.1", port, "/health", probes.check_healthy)() is None) == ready


async def test_tcp_names_the_address_where_nothing_listens(server: Any) -> None:
    assert await probes.tcp("127.0.0.1", await server(b""))() is None
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert await probes.tcp("127.0.0.1", port)() == (
            f"nothing accepts connections at 127.0.0.1:{port}: connection refused"
        )


async def test_a_file_that_was_there_before_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "up"
    assert "does not exist" in (await probes.file(str(path))() or "")
    path.write_text("old")
    probe = probes.file(str(path))
    assert "is older than this start" in (await probe() or "")
    path.write_text("newer")
    assert await probe() is None


async def test_a_log_is_read_from_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("serving\n")
    probe = probes.log(str(path), "^serving$")
    assert await probe() == "no line of its log matches '^serving$'"
    with path.open("a") as log:
        log.write("not serving yet\nser")
    assert await probe() is not None
    with path.open("a") as log:
        log.write("ving\n")
    assert await probe() is None


async def test_a_log_is_searched_across_its_files(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("up, a long time ago\n" * 5000)
    probe = probes.log(str(path), "up")
    assert await probe() is not None
    (tmp_path / f"log.{path.stat().st_size:015d}").write_text("up\n")
    assert await probe() is None


async def test_a_command_is_ready_when_it_exits_with_0() -> None:
    codes = iter([3, 0])

    async def run() -> int:
        return next(codes)

    probe = probes.command(run, "check it")
    assert await probe() == "check it exited with 3"
    assert await probe() is None
