"""HTTP messages, the server and its connections: pieces, limits, ambiguous lengths, overload."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest
from tests.sandbox.http_messages import AMBIGUOUS

from muster.sandbox.gateway.balancer import Balancer
from muster.sandbox.http.client import IdleConnections, connect
from muster.sandbox.http.codec import ChunkDecoder, HttpRequest, HttpResponse, RequestHead, request_bytes
from muster.sandbox.http.server import OpenConnections
from muster.sandbox.http.server import serve as serve_http

# Header lines for which two parsers may disagree where a message ends: request and response smuggling.


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
    data = await asyncio.wait_for(reader.read(), 10)
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


@pytest.mark.parametrize("lengths", AMBIGUOUS)
async def test_a_gateway_does_not_pass_on_a_response_whose_length_is_ambiguous(lengths: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + lengths + b"\r\n1\r\na\r\n0\r\n\r\n")

    member = await asyncio.start_server(respond, "127.0.0.1", 0)
    balancer = Balancer(f"http://127.0.0.1:{member.sockets[0].getsockname()[1]}", "token", own_first=False)
    response = await asyncio.wait_for(balancer(HttpRequest("GET", "/health", {}, b"")), 10)
    assert (response.status, response.content["reason"]) == (502, "lost")
    balancer.close()
    member.close()


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


def test_a_chunked_body_is_decoded_wherever_it_is_cut() -> None:
    body = b"5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\n\r\n"
    for size in range(1, len(body) + 1):
        decoder, buffer, decoded = ChunkDecoder(bounded=False), bytearray(), b""
        for start in range(0, len(body), size):
            assert not decoder.is_complete
            buffer += body[start : start + size]
            decoded += decoder.decode(buffer)
        assert (decoded, decoder.is_complete, bytes(buffer)) == (b"hello!", True, b"")


@pytest.mark.parametrize("value", ["a\r\nAuthorization: x", "a\nb", "a\rb", "\u65e5\u672c"])
def test_a_header_that_cannot_be_sent_as_it_is_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"line break|latin-1"):
        request_bytes("GET", "/", {"X-Session-ID": value}, b"")


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
        await asyncio.wait_for(entered.wait(), 30)
        entered.clear()
    for _ in range(3):
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(asking)
        answers.append(await asyncio.wait_for(reader.read(), 30))
        writer.close()
    assert all(answer.startswith(b"HTTP/1.1 503 ") and b"nothing was run" in answer for answer in answers), answers
    assert len(connections) == 2 and not entered.is_set()
    opened[0][1].close()  # its place is free again
    while len(connections) == 2:
        await asyncio.sleep(0.01)
    _, writer = await asyncio.open_connection(*sock.getsockname())
    writer.write(asking)
    await asyncio.wait_for(entered.wait(), 30)
    for one in (opened[1][1], writer):
        one.close()
    server.close()
    while len(connections):
        await asyncio.sleep(0.01)
