"""The client side of HTTP/1.1: on asyncio's streams (for the asynchronous client and the gateway), and blocking."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

from muster.sandbox.http.codec import (
    HEAD_END,
    HEAD_LIMIT,
    ChunkDecoder,
    ProtocolError,
    ResponseHead,
    parse_response_head,
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
STREAM_BUFFER_LIMIT = 1 << 20  # bytes that are received before they are read; a head cannot be longer
INTERIM_MAX = 100  # responses (such as 100 Continue) before the final one
READ_SIZE = 256 << 10  # bytes of one read
IDLE_S = 60.0  # for which an unused connection is kept: servers keep it for longer (server.KEEP_ALIVE_S)


async def connect(endpoint: str, timeout_s: float) -> Streams:
    """Connect to a URL's host and port; raise OSError if that fails or takes too long."""
    parts = urlsplit(endpoint)
    opening = asyncio.open_connection(parts.hostname, parts.port or 80, limit=STREAM_BUFFER_LIMIT)
    try:
        return await asyncio.wait_for(opening, timeout_s)
    except asyncio.TimeoutError:
        raise OSError(f"no connection within {timeout_s:g} s") from None


async def read_head(reader: asyncio.StreamReader) -> ResponseHead:
    """Read the head of a response; raise ProtocolError, or EOFError if the connection ends before it."""
    for _ in range(INTERIM_MAX):
        try:
            data = await reader.readuntil(HEAD_END)
        except asyncio.LimitOverrunError:
            raise ProtocolError(502, "the head of the response is too long") from None
        head = parse_response_head(data[: -len(HEAD_END)])
        if not head.is_interim:
            return head
    raise ProtocolError(502, "the response does not come to an end")


async def read_response(reader: asyncio.StreamReader) -> tuple[ResponseHead, bytes]:
    """Read a response whose head has a Content-Length."""
    head = await read_head(reader)
    return head, await reader.readexactly(head.length)


async def read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the body of a chunked response as it arrives; raise EOFError if it is cut off."""
    decoder, buffer = ChunkDecoder(bounded=False), bytearray()
    while not decoder.is_complete:
        data = await reader.read(READ_SIZE)
        if not data:
            raise EOFError("the connection was closed within a response")
        buffer += data
        if payload := decoder.decode(buffer):
            yield payload


async def read_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a chunked response; a proxy may have changed the chunks."""
    rest = bytearray()
    async for data in read_chunks(reader):
        for line in _split_lines(rest, data):
            yield line


def _split_lines(rest: bytearray, data: bytes) -> Iterator[bytes]:
    """Yield the lines that `data` completes; `rest` holds the beginning of the next line, and is searched once."""
    searched = len(rest)
    rest += data
    while (end := rest.find(b"\n", searched)) != -1:
        yield bytes(rest[:end])
        del rest[: end + 1]
        searched = 0


class IdleConnections:
    """Open, unused connections by endpoint: at most `limit`, of which the oldest are closed first."""

    def __init__(self, limit: int | None = None, idle_s: float | None = None) -> None:
        """`idle_s`: seconds for which an unused connection is kept; less than the server keeps it. Default: IDLE_S."""
        self._idle_s = idle_s
        self._idle: dict[str, list[tuple[Streams, float]]] = {}  # with the time since which each is idle; none empty
        self._limit, self._count = limit, 0

    def acquire(self, endpoint: str) -> Streams | None:
        """Return a connection that is still open: a closed one must be noticed before a request is sent."""
        idle_s = IDLE_S if self._idle_s is None else self._idle_s
        while idle := self._idle.get(endpoint):
            (reader, writer), since = idle.pop()
            self._count -= 1
            if not idle:
                del self._idle[endpoint]
            if time.monotonic() - since < idle_s and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    def release(self, endpoint: str, streams: Streams) -> None:
        if self._count == self._limit:
            oldest = next(iter(self._idle))  # endpoints are in the order of their last use
            self._idle[oldest].pop(0)[0][1].close()
            self._count -= 1
            if not self._idle[oldest]:
                del self._idle[oldest]
        self._idle[endpoint] = [*self._idle.pop(endpoint, []), (streams, time.monotonic())]
        self._count += 1

    def close(self) -> None:
        self._count = 0
        for (_, writer), _ in [one for idle in self._idle.values() for one in idle]:
            writer.close()
        self._idle.clear()


class BlockingConnection:
    """A connection for one thread at a time. Methods raise OSError, EOFError or ProtocolError."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        parts = urlsplit(endpoint)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 80), timeout_s)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    @property
    def is_idle(self) -> bool:
        """Whether it can take a request: any input between two requests is the end of the connection, or an error."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not self._buffer and not poll.poll(0)

    def send(self, data: bytes, timeout_s: float) -> ResponseHead:
        """Send a request and read the head of its response; `timeout_s` is for each read from now on."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)
        for _ in range(INTERIM_MAX):
            head = self._read_head()
            if not head.is_interim:
                return head
        raise ProtocolError(502, "the response does not come to an end")

    def _read_head(self) -> ResponseHead:
        while (end := self._buffer.find(HEAD_END)) == -1:
            if len(self._buffer) > HEAD_LIMIT:
                raise ProtocolError(502, "the head of the response is too long")
            self._receive()
        head = parse_response_head(bytes(self._buffer[:end]))
        del self._buffer[: end + len(HEAD_END)]
        return head

    def read_body(self, head: ResponseHead) -> bytes:
        if head.is_chunked:
            return b"".join(self._read_chunks())
        while len(self._buffer) < head.length:
            self._receive()
        body = bytes(self._buffer[: head.length])
        del self._buffer[: head.length]
        return body

    def read_lines(self) -> Iterator[bytes]:
        """Yield the lines of a chunked response as they arrive."""
        rest = bytearray()
        for data in self._read_chunks():
            yield from _split_lines(rest, data)

    def _read_chunks(self) -> Iterator[bytes]:
        decoder = ChunkDecoder(bounded=False)
        while True:
            if payload := decoder.decode(self._buffer):
                yield payload
            if decoder.is_complete:
                return
            self._receive()

    def _receive(self) -> None:
        data = self._socket.recv(READ_SIZE)
        if not data:
            raise EOFError("the connection was closed within a response")
        self._buffer += data

    def close(self) -> None:
        self._socket.close()
