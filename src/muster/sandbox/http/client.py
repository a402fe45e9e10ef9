"""HTTP/1.1 from the asking side, on asyncio's streams: for the asynchronous client and for the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LINE_LIMIT = 256 << 20
IDLE_S = 60.0  # for which an unused connection is kept: servers keep it for longer (http.KEEP_S)


async def connect(endpoint: str, within: float) -> Streams:
    """OSError when there is no connection in time."""
    parts = urlsplit(endpoint)
    opening = asyncio.open_connection(parts.hostname, parts.port or 80, limit=LINE_LIMIT)
    try:
        return await asyncio.wait_for(opening, within)
    except asyncio.TimeoutError:
        raise OSError(f"no connection within {within:g} s") from None


def request_bytes(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("latin-1", "replace") + body


async def head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers, their names in lower case."""
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)}
    return int(first.split(" ")[1]), headers


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """A whole answer of known length."""
    status, headers = await head(reader)
    return status, headers, await reader.readexactly(int(headers["content-length"]))


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body of an answer that comes in chunks."""
    while True:
        size = int(await reader.readline(), 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield data[:-2]


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Its lines: whoever is in between may have cut it elsewhere."""
    rest = bytearray()
    async for data in chunks(reader):
        rest += data
        while (end := rest.find(b"\n")) != -1:
            yield bytes(rest[:end])
            del rest[: end + 1]


async def next_line(lines: AsyncIterator[bytes]) -> bytes | None:
    """None at the end."""
    async for line in lines:
        return line
    return None


class IdleConnections:
    """Connections that are open and unused, by endpoint: at most `most` of them, the newest."""

    def __init__(self, most: int | None = None) -> None:
        self._idle: dict[str, list[tuple[Streams, float]]] = {}  # and since when
        self._most, self._count = most, 0

    def take(self, endpoint: str) -> Streams | None:
        """One that is open still: a closed one must be noticed before a request is sent into it."""
        idle = self._idle.get(endpoint, [])
        while idle:
            (reader, writer), since = idle.pop()
            self._count -= 1
            if time.monotonic() - since < IDLE_S and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    def give(self, endpoint: str, streams: Streams) -> None:
        if self._count == self._most:
            oldest = next(iter(self._idle))  # by when an endpoint was used last
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
