"""One HTTP/1.1 exchange with a replica over asyncio's streams: connection, and the body of a response as it arrives."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

from muster.sandbox.http import client
from muster.sandbox.http.client import Streams
from muster.sandbox.http.codec import ResponseHead

CONNECT_TIMEOUT_S = 2.0
NO_BODY_STATUSES = frozenset([204, 304])
# A host that is gone sends no FIN. The kernel notices it on an idle connection after 10 + 3 * 5 seconds.
KEEPALIVE_OPTIONS = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


async def connect_replica(url: str) -> Streams:
    """Connect to a replica; raise OSError."""
    streams = await client.connect(url, CONNECT_TIMEOUT_S)
    connected = streams[1].get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_OPTIONS:
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return streams


def body_length(head: ResponseHead) -> int | None:
    """Return the length of a response's body, None if it comes in chunks or ends with the connection."""
    if head.status in NO_BODY_STATUSES:
        return 0
    if head.is_chunked or "content-length" not in head.headers:
        return None
    return head.length


def keeps_connection(head: ResponseHead) -> bool:
    """Return whether the connection takes another request after this response."""
    return not head.is_last and (head.is_chunked or body_length(head) is not None)


async def read_body(reader: asyncio.StreamReader, head: ResponseHead) -> AsyncIterator[bytes]:
    """Yield a body as it arrives; raise EOFError if the connection ends within it."""
    left = body_length(head)
    if left is None and head.is_chunked:
        async for data in client.read_chunks(reader):
            yield data
        return
    while left is None or left:
        data = await reader.read(client.READ_SIZE if left is None else min(left, client.READ_SIZE))
        if not data:
            if left is None:
                return
            raise EOFError("the connection was closed within a response")
        left = None if left is None else left - len(data)
        yield data
