"""Where the body of a response ends, and whether its connection can be used again."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.endpoint.engine import Engine

from muster.endpoint.exchange import body_length, connect_replica, keeps_connection, read_body
from muster.sandbox.http.codec import ResponseHead, parse_response_head

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 3"


def head(text: bytes) -> ResponseHead:
    return parse_response_head(text)


async def body(text: bytes, sent: bytes) -> bytes:
    reader = asyncio.StreamReader()
    reader.feed_data(sent)
    reader.feed_eof()
    return b"".join([data async for data in read_body(reader, head(text))])


async def test_a_body_has_a_length_or_chunks_or_ends_with_its_connection() -> None:
    assert await body(LENGTH, b"abcd") == b"abc"
    assert await body(CHUNKED, b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\nd") == b"abc"
    assert await body(UNTIL_CLOSE, b"abcd") == b"abcd"
    assert await body(b"HTTP/1.1 204 No Content", b"") == b""


@pytest.mark.parametrize("cut", [(LENGTH, b"ab"), (CHUNKED, b"2\r\nab\r\n")])
async def test_a_body_that_is_cut_off_is_an_error(cut: tuple[bytes, bytes]) -> None:
    with pytest.raises(EOFError):
        await body(*cut)


def test_a_connection_is_kept_only_if_the_end_of_its_response_is_known() -> None:
    assert keeps_connection(head(LENGTH)) and keeps_connection(head(CHUNKED))
    assert not keeps_connection(head(UNTIL_CLOSE))
    assert not keeps_connection(head(LENGTH + b"\r\nConnection: close"))
    assert body_length(head(CHUNKED)) is None and body_length(head(b"HTTP/1.1 304 Not Modified")) == 0


async def test_a_host_that_is_gone_is_noticed_by_the_kernel(engines: list[Engine]) -> None:
    _, writer = await connect_replica(engines[0].url)
    connected = writer.get_extra_info("socket")
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
    writer.close()
