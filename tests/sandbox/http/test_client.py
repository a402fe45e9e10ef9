"""The client side of HTTP: connections that are kept, responses in pieces."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.running import wait_for

from muster.sandbox.http import client
from muster.sandbox.http.client import BlockingConnection, IdleConnections, connect
from muster.sandbox.http.codec import HEAD_LIMIT, ProtocolError


async def test_idle_connections_stay_below_their_limit_when_endpoints_take_turns() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    idle, opened = IdleConnections(limit=2), [await connect(url, 10) for _ in range(4)]
    idle.release("a", opened[0])
    idle.release("b", opened[1])
    assert idle.acquire("a") == opened[0]  # the endpoint that was used first has no idle connection any more
    for endpoint, streams in (("c", opened[2]), ("d", opened[3]), ("a", opened[0])):
        idle.release(endpoint, streams)
    assert [idle.acquire(endpoint) for endpoint in "abcd"] == [opened[0], None, None, opened[3]]
    for _, writer in opened:
        writer.close()
    server.close()


# -- on asyncio's streams -------------------------------------------------------------------------------------------


def reader_of(*pieces: bytes) -> asyncio.StreamReader:
    """Return a stream with this content and its end."""
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    return reader


async def test_a_response_with_a_length_is_read() -> None:
    head, body = await client.read_response(reader_of(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd"))
    assert (head.status, body) == (200, b"abc")


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"])
async def test_a_response_that_is_cut_off_is_the_end_of_the_connection(data: bytes) -> None:
    with pytest.raises(EOFError):
        await client.read_response(reader_of(data))


async def test_lines_are_read_however_the_chunks_are_cut() -> None:
    chunks = b"4\r\none\n\r\n2\r\ntw\r\n3\r\no\n\n\r\n4\r\nrest\r\n0\r\n\r\n"
    assert [line async for line in client.read_lines(reader_of(chunks))] == [b"one", b"two", b""]


async def test_a_chunked_response_that_is_cut_off_yields_its_lines_first() -> None:
    found = []
    with pytest.raises(EOFError, match="closed within a response"):
        async for line in client.read_lines(reader_of(b"4\r\none\n\r\n9\r\ntwo")):
            found.append(line)
    assert found == [b"one"]


async def test_a_connection_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client.asyncio, "open_connection", never)
    with pytest.raises(OSError, match=r"no connection within 0\.05 s"):
        await connect("http://127.0.0.1:9", 0.05)


async def test_an_idle_connection_that_was_closed_or_is_too_old_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    idle = IdleConnections()
    closed = await connect(url, 10)
    (await accepted.get()).close()
    await asyncio.wait_for(closed[0].read(), 120)
    idle.release(url, closed)
    assert idle.acquire(url) is None and closed[1].is_closing()
    old = await connect(url, 10)
    idle.release(url, old)
    with monkeypatch.context() as patched:
        patched.setattr(client, "IDLE_S", 0.0)
        assert idle.acquire(url) is None and old[1].is_closing()
    kept = await connect(url, 10)
    idle.release(url, kept)
    idle.close()
    assert kept[1].is_closing() and idle.acquire(url) is None
    while not accepted.empty():
        accepted.get_nowait().close()
    server.close()


# -- blocking -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """Serve one connection: each request gets the next answer, and the connection ends after the last."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(120)


REQUEST = b"GET / HTTP/1.1\r\n\r\n"


def test_a_blocking_connection_is_used_for_one_request_after_the_other() -> None:
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    second = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nde\n\r\n2\r\nf\n\r\n0\r\n\r\n"
    with answering(first, second, second) as url:
        connection = BlockingConnection(url, 120)
        assert connection.is_idle
        assert connection.read_body(connection.send(REQUEST, 120)) == b"abc" and connection.is_idle
        assert connection.read_body(connection.send(REQUEST, 120)) == b"de\nf\n"
        connection.send(REQUEST, 120)
        assert list(connection.read_lines()) == [b"de", b"f"]
        wait_for("the end of the connection", lambda: not connection.is_idle)
        connection.close()


def test_a_blocking_connection_that_ends_within_a_response_is_an_error() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc") as url:
        connection = BlockingConnection(url, 120)
        head = connection.send(REQUEST, 120)
        with pytest.raises(EOFError, match="closed within a response"):
            connection.read_body(head)
        connection.close()


def test_a_head_without_an_end_is_given_up() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nX: " + b"y" * (2 * HEAD_LIMIT)) as url:
        connection = BlockingConnection(url, 120)
        with pytest.raises(ProtocolError, match="the head of the response is too long"):
            connection.send(REQUEST, 120)
        connection.close()
