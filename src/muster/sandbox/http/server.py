"""The HTTP/1.1 server on asyncio. Requests of one connection are answered one after the other.

The handler admits a request by its head: nothing of the body is kept before. Heads, chunk lines, bodies, connections
and the time for each are bounded. A lost connection cancels the handler of its request. A client may close its sending
half: while its request is being answered it gets `100 Continue`, which shows whether it is still there.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Callable, Protocol

from muster.sandbox import models
from muster.sandbox.http import codec
from muster.sandbox.http.codec import HEAD_LIMIT, HttpRequest, HttpResponse, ProtocolError, RequestHead
from muster.sandbox.http.peer import user_of_peer
from muster.sandbox.http.request_reader import RequestReader

HEAD_TIMEOUT_S = 10.0  # for a whole head, from the connection or its first byte on
STALL_TIMEOUT_S = 60.0  # without a byte of a body that is being sent, or of a response that is being read
KEEP_ALIVE_S = 300.0  # until the next request of a connection; our clients close earlier (client.IDLE_S)
LINGER_S = 5.0  # in which further input of a rejected client is dropped, so that it can read the response
BACKLOG = 4096
REJECTED_MAX = 64  # connections beyond the limit that are answered at the same time: each takes an open file
PROBE_INTERVAL_S = 0.5  # between two signs of life to a client that has closed its sending half
WRITE_SIZE = 1 << 18  # bytes of a response that are handed to the transport at once
ACCEPT_BATCH = 64  # connections accepted between two checks of their number


class Handler(Protocol):
    """Answers requests."""

    def refusal(self, head: RequestHead) -> HttpResponse | None:
        """Return the response that rejects a request by its head, or None to read the body."""

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Return the response to an admitted request."""


class OpenConnections:
    """The connections of one endpoint, at most `limit`.

    A new connection replaces the oldest one that never had a request admitted, else the one that has been idle for
    longest; if all are busy, it is rejected.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: set[Connection] = set()
        self._unproven: dict[Connection, None] = {}  # no request was admitted yet; oldest first
        self._idle: dict[Connection, None] = {}
        self._rejected: set[Connection] = set()  # until they have read why

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._all))

    def add(self, connection: Connection) -> bool:
        """Return False if all connections are busy."""
        if len(self._all) >= self._limit:
            replaceable = self._unproven or self._idle
            if not replaceable:
                return False
            oldest = next(iter(replaceable))
            self.discard(oldest)
            oldest.abort()
        self._all.add(connection)
        self._unproven[connection] = None
        return True

    def add_rejected(self, connection: Connection) -> bool:
        """Return whether a connection beyond the limit can be answered."""
        if len(self._rejected) >= REJECTED_MAX:
            return False
        self._rejected.add(connection)
        return True

    def mark_busy(self, connection: Connection) -> None:
        self._unproven.pop(connection, None)
        self._idle.pop(connection, None)

    def mark_idle(self, connection: Connection) -> None:
        if connection in self._all:
            self._idle[connection] = None

    def discard(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._rejected.discard(connection)
        self.mark_busy(connection)


async def serve(handler: Handler, connections: OpenConnections, sock: socket.socket) -> asyncio.AbstractServer:
    """Serve on a bound socket."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(handler, connections), sock=sock, backlog=ACCEPT_BATCH
    )
    sock.listen(BACKLOG)  # asyncio uses `backlog` for both: how many may wait, and how many it accepts at once
    return server


class Connection(asyncio.Protocol):
    """One connection of a client, for any number of requests."""

    def __init__(self, handler: Handler, connections: OpenConnections) -> None:
        self._handler, self._connections = handler, connections
        self._reader = RequestReader(self._admit)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._closing = self._is_idle = self._lingers = self._paused = False
        self._at_eof = self._responds = False
        self._user: int | None = None
        self._probing: asyncio.TimerHandle | None = None

    # -- callbacks of asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._connections.add(self):
            self._set_timer(HEAD_TIMEOUT_S, self._on_timeout)
        elif self._connections.add_rejected(self):
            body = {**models.refusal("too many connections: nothing was run"), "reason": "overloaded"}
            self._reject(HttpResponse(503, body, {"Retry-After": "1"}))
        else:
            self._transport.abort()

    def eof_received(self) -> bool:
        """Keep the connection if a request is being answered: some clients close their sending half after it."""
        self._at_eof = True
        if self._task is not None:
            self._probe()
        return self._task is not None

    def _probe(self) -> None:
        """Find out whether a client that sends nothing more still reads: if not, the second write fails."""
        if self._task is not None and not self._responds and not self._transport.is_closing():
            self._transport.write(codec.CONTINUE)
            self._probing = asyncio.get_running_loop().call_later(PROBE_INTERVAL_S, self._probe)

    def connection_lost(self, error: Exception | None) -> None:
        self._cancel_timer()
        if self._probing is not None:
            self._probing.cancel()
        self._connections.discard(self)
        self._can_write.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()
        if self._task is not None:
            self._set_timer(STALL_TIMEOUT_S, self._abort_unless_read)

    def resume_writing(self) -> None:
        self._can_write.set()
        if self._task is not None:
            self._cancel_timer()

    def data_received(self, data: bytes) -> None:
        if self._lingers or self._transport.is_closing():
            return
        self._reader.feed(data)
        if self._task is None:
            if self._is_idle:
                self._is_idle = False
                self._set_timer(HEAD_TIMEOUT_S, self._on_timeout)
            self._advance()
        elif self._reader.buffered > HEAD_LIMIT and not self._paused:
            self._paused = True  # pipelined requests wait in the buffers of their sender
            self._transport.pause_reading()

    def finish(self) -> None:
        """Close the connection after the request that is being answered."""
        self._closing = True
        if self._task is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # -- timeouts -----------------------------------------------------------------------------------------------------

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        """Replace the connection's only timer."""
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, callback)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        """Reject a request whose head or body did not arrive in time."""
        if self._reader.head is None and not self._reader.buffered:
            self._transport.abort()  # no request was begun
        else:
            self._reject(
                HttpResponse(408, models.refusal("the request did not arrive completely in time: nothing was run"))
            )

    def _abort_unless_read(self) -> None:
        """Abort the connection, unless the client is still reading its response."""
        unsent = self._transport.get_write_buffer_size()
        if unsent > 0 and unsent != self._unsent:
            self._unsent = unsent
            self._set_timer(STALL_TIMEOUT_S, self._abort_unless_read)
        else:
            self._transport.abort()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Process the input that has arrived."""
        try:
            request = self._reader.next()
        except ProtocolError as error:
            self._reject(HttpResponse(error.status, models.refusal(str(error))))
            return
        if request is not None:
            self._cancel_timer()
            self._responds = False
            request = replace(request, user=self._find_user())
            self._task = asyncio.get_running_loop().create_task(self._answer(request))
        elif self._reader.head is not None:
            self._set_timer(STALL_TIMEOUT_S, self._on_timeout)

    def _find_user(self) -> int:
        """Return the user at the other end, asked for once: a connection is not passed on to other users."""
        if self._user is None:
            own, peer = (self._transport.get_extra_info(name) for name in ("sockname", "peername"))
            self._user = user_of_peer(own, peer)
        return self._user

    def _reject(self, response: HttpResponse, has_body: bool = True) -> None:
        """Answer, then drop further input for a while: a reset could keep the client from reading the response."""
        self._closing = self._lingers = True
        self._reader.clear()
        self._transport.write(codec.response_bytes(response, is_last=True, has_body=has_body))
        self._transport.write_eof()
        self._set_timer(LINGER_S, self._transport.abort)

    def _admit(self, head: RequestHead) -> bool:
        """Let the handler decide about a request; after a refusal the connection only sends the response."""
        self._closing = self._closing or self._reader.is_last
        refusal = self._handler.refusal(head)
        if refusal is not None:
            self._reject(refusal, has_body=head.method != "HEAD")
            return False
        self._connections.mark_busy(self)
        if head.headers.get("expect", "").lower() == "100-continue":
            self._transport.write(codec.CONTINUE)
        return True

    # -- responses ----------------------------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> None:
        try:
            has_body = request.method != "HEAD"
            response = await self._handler(request if has_body else replace(request, method="GET"))
            self._responds = True
            if not has_body and hasattr(response.content, "__aiter__"):
                self._transport.write(codec.stream_head_bytes(response, self._closing))
                async for _ in response.content:  # only an iterator that has begun releases what it holds
                    break
                await response.content.aclose()
            elif hasattr(response.content, "__aiter__"):
                await self._write_lines(response)
            else:
                await self._write(codec.response_bytes(response, self._closing, has_body))
        except Exception:  # within a response, only closing the connection can report an error
            self._transport.abort()
            raise
        finally:
            self._task = None
        if self._closing or (self._at_eof and not self._reader.buffered):
            self._transport.close()
            self._set_timer(STALL_TIMEOUT_S, self._abort_unless_read)
            return
        self._is_idle = True
        self._connections.mark_idle(self)
        self._set_timer(KEEP_ALIVE_S, self._abort_unless_read)
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._reader.buffered:
            self.data_received(b"")

    async def _write(self, data: bytes) -> None:
        """Write a response; of a long one only so much as the client reads: the transport would copy all of it."""
        for start in range(0, len(data), WRITE_SIZE):
            self._transport.write(data[start : start + WRITE_SIZE])
            await self._can_write.wait()

    async def _write_lines(self, response: HttpResponse) -> None:
        self._transport.write(codec.stream_head_bytes(response, self._closing))
        async for line in response.content:
            self._transport.write(codec.chunk_bytes(line))
            await self._can_write.wait()
        self._transport.write(codec.LAST_CHUNK)
