"""The HTTP server and its connections: requests in pieces, limits, ambiguous lengths, overload."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

import pytest
from tests.sandbox.http_messages import AMBIGUOUS

from muster.sandbox.http.codec import CONTINUE, HttpRequest, HttpResponse, RequestHead
from muster.sandbox.http.server import REJECTED_MAX, OpenConnections
from muster.sandbox.http.server import serve as serve_http


async def exchange(sent: list[bytes]) -> bytes:
    """What a server whose answers repeat the request says to these pieces."""

    class Repeat:
        def refusal(self, head: RequestHead) -> None:
            return None

        async def __call__(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(200, {"method": request.method, "path": request.path, "body": request.body.decode()})

    sock = socket.create_server(("127.0.0.1", 0))
    server = await serve_http(Repeat(), OpenConnections(8), sock)
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    for piece in sent:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write_eof()
    data = await asyncio.wait_for(reader.read(), 120)
    writer.close()
    server.close()
    return data


async def test_requests_in_pieces_in_chunks_and_one_after_the_other_are_read() -> None:
    said = await exchange(
        [
            b"POST /a HT",
            b"TP/1.1\r\nContent-Length: 4\r\n\r\nab",
            b"cdGET /b HTTP/1.1\r\n\r\n",
            b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n2;e=1\r\n",
            b"12\r\n0\r\n\r\n",
            b"POST /d HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\nConnection: close\r\n\r\n",
            b"!",
        ]
    )
    found = re.findall(rb'"path": "(..)", "body": "([^"]*)"', said)
    assert found == [(b"/a", b"abcd"), (b"/b", b""), (b"/c", b"xyz12"), (b"/d", b"!")]
    assert b"100 Continue" in said


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000, b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nX: y\nForged: z\r\n\r\n", b"400"),
        ("POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n".encode("latin-1"), b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 400_000, b"400"),
        *((b"POST / HTTP/1.1\r\n" + lengths + b"\r\n1\r\na\r\n0\r\n\r\n", b"400") for lengths in AMBIGUOUS),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(sent: bytes, status: bytes) -> None:
    assert (await exchange([sent])).startswith(b"HTTP/1.1 " + status)


async def test_when_all_connections_are_busy_one_more_is_told_that_nothing_was_run() -> None:
    class Sleeper:
        def refusal(self, head: RequestHead) -> None:
            return None

        async def __call__(self, request: HttpRequest) -> HttpResponse:
            entered.set()
            await asyncio.sleep(600)
            raise AssertionError

    entered, sock = asyncio.Event(), socket.create_server(("127.0.0.1", 0))
    connections = OpenConnections(2)
    server = await serve_http(Sleeper(), connections, sock)
    asking, answers = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n1234", []
    opened = [await asyncio.open_connection(*sock.getsockname()) for _ in range(2)]
    for _, writer in opened:
        writer.write(asking)
        await asyncio.wait_for(entered.wait(), 120)
        entered.clear()
    for _ in range(3):
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(asking)
        answers.append(await asyncio.wait_for(reader.read(), 120))
        writer.close()
    assert all(answer.startswith(b"HTTP/1.1 503 ") and b"nothing was run" in answer for answer in answers), answers
    assert len(connections) == 2 and not entered.is_set()
    opened[0][1].close()  # its place is free again
    while len(connections) == 2:
        await asyncio.sleep(0.01)
    _, writer = await asyncio.open_connection(*sock.getsockname())
    writer.write(asking)
    await asyncio.wait_for(entered.wait(), 120)
    for one in (opened[1][1], writer):
        one.close()
    server.close()
    while len(connections):
        await asyncio.sleep(0.01)


class FakeConnection:
    """A connection that notes that it was ended."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_a_new_connection_replaces_the_oldest_without_a_request_then_the_longest_idle() -> None:
    connections: Any = OpenConnections(3)
    stranger, idle, busy, first, second, third = (FakeConnection() for _ in range(6))
    for connection in (busy, idle, stranger):
        assert connections.add(connection)
    for connection in (busy, idle):
        connections.mark_busy(connection)
    connections.mark_idle(idle)
    assert connections.add(first) and stranger.aborted
    connections.mark_busy(first)
    assert connections.add(second) and idle.aborted
    connections.mark_busy(second)
    assert not connections.add(third) and len(connections) == 3
    assert set(connections) == {busy, first, second} and not any(one.aborted for one in (busy, first, second, third))
    connections.discard(busy)
    assert connections.add(third)


def test_only_some_connections_beyond_the_limit_are_answered() -> None:
    connections: Any = OpenConnections(0)
    many = [FakeConnection() for _ in range(REJECTED_MAX + 1)]
    assert [connections.add_rejected(one) for one in many] == [True] * REJECTED_MAX + [False]
    connections.discard(many[0])
    assert connections.add_rejected(many[-1])


def test_a_connection_that_was_replaced_is_not_idle_again() -> None:
    connections: Any = OpenConnections(1)
    lost, current, other = (FakeConnection() for _ in range(3))
    connections.add(lost)
    connections.mark_busy(lost)
    connections.discard(lost)
    connections.mark_idle(lost)  # its last request has ended
    connections.add(current)
    connections.mark_busy(current)
    assert not connections.add(other)


async def test_head_gets_the_head_of_the_answer_to_get() -> None:
    said = await exchange([b"HEAD /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nConnection: close\r\n\r\n"])
    first, second = said.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert first.endswith(b"\r\n\r\n") and b"Content-Length: 0" not in first
    assert second.endswith(b'{"method": "GET", "path": "/b", "body": ""}')


class Waiter:
    """A handler that answers when the test wants it."""

    def __init__(self) -> None:
        self.entered, self.may_answer, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def refusal(self, head: RequestHead) -> None:
        return None

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        self.entered.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return HttpResponse(200, {"path": request.path})


@pytest.mark.parametrize("closes", ["one half", "both"])
async def test_a_client_that_closes_its_sending_half_is_answered_and_one_that_is_gone_is_not(closes: str) -> None:
    handler, sock = Waiter(), socket.create_server(("127.0.0.1", 0))
    server = await serve_http(handler, OpenConnections(8), sock)
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    writer.write(b"GET /x HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(handler.entered.wait(), 120)
    if closes == "both":
        writer.close()
        await asyncio.wait_for(handler.cancelled.wait(), 120)
    else:
        writer.write_eof()
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120) == CONTINUE
        handler.may_answer.set()
        assert (await asyncio.wait_for(reader.read(), 120)).endswith(b'{"path": "/x"}')
        writer.close()
    server.close()
