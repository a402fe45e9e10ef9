"""HTTP/1.1 on asyncio: as much of it as clients of a JSON service use. Requests of one connection are answered in turn.

A request is admitted by its head: until its handler has said that it may come in, nothing of its body is kept. Heads,
lines of chunks, bodies, connections and the time for each are bounded. A lost connection cancels the handler of its
request: nobody is there to read the answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

from muster.sandbox.api import nemo_skills

HEAD_LIMIT = 32 << 10  # bytes; as nginx has it
HEADERS_MOST = 100
BODY_LIMIT = 64 << 20
CHUNK_LINE_LIMIT = 1 << 10
FRAMING_LIMIT = 1 << 20  # bytes around chunks, beyond as many as are in them: of a body in crumbs
HEAD_S = 10.0  # for a whole head, from the connection or its first byte on
STALL_S = 60.0  # without a byte of a body that is being sent, or of an answer that is being read
KEEP_S = 300.0  # for the next request of a connection; clients of ours leave earlier (streams.IDLE_S)
LINGER_S = 5.0  # in which what a refused client still sends is read and dropped, so that it sees the answer
BACKLOG = 4096
TURNED_AWAY_MOST = 64  # connections beyond the most, for as long as they are told so
ACCEPTED_AT_ONCE = 64  # between two looks at how many there are
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)")  # a line that holds one can pass for two
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_LENGTH = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Head:
    """Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class HttpRequest(Head):
    """A head, and the body that followed it."""

    body: bytes

    def json(self) -> Any:
        """ValueError when it is none."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


@dataclass(frozen=True)
class HttpResponse:
    """Text, bytes, or an object that is sent as JSON, or lines that come one after the other."""

    status: int
    content: Any
    headers: dict[str, str] = field(default_factory=dict)


class Handler(Protocol):
    """Answers requests."""

    def refusal(self, head: Head) -> HttpResponse | None:
        """Why a request with this head may not come in; None when it may, and its body is read."""

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """The answer to a request that was let in."""


class _Refused(Exception):
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class OpenConnections:
    """The connections of one endpoint, at most so many. A new one takes the place of the oldest of which no request was
    ever admitted, else of the one that has been idle for longest; if all are busy, it is refused."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: set[Connection] = set()
        self._strangers: dict[Connection, None] = {}  # oldest first
        self._idle: dict[Connection, None] = {}
        self._turned_away: set[Connection] = set()  # being told so

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._all))

    def add(self, connection: Connection) -> bool:
        """False when there is no place."""
        if len(self._all) >= self._most:
            places = self._strangers or self._idle
            if not places:
                return False
            oldest = next(iter(places))
            self.discard(oldest)
            oldest.abort()
        self._all.add(connection)
        self._strangers[connection] = None
        return True

    def may_tell(self, connection: Connection) -> bool:
        """Whether one for which there is no place can be told so: that takes a file for a while, too."""
        if len(self._turned_away) >= TURNED_AWAY_MOST:
            return False
        self._turned_away.add(connection)
        return True

    def is_busy(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._idle.pop(connection, None)

    def is_idle(self, connection: Connection) -> None:
        if connection in self._all:
            self._idle[connection] = None

    def discard(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._turned_away.discard(connection)
        self.is_busy(connection)


async def serve(
    handler: Handler, connections: OpenConnections, sock: socket.socket, keep: bool = True
) -> asyncio.AbstractServer:
    """Serve on a socket; `keep`: a connection may be used for more than one request."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(handler, connections, keep), sock=sock, backlog=ACCEPTED_AT_ONCE
    )
    sock.listen(BACKLOG)  # asyncio accepts as many at once as it lets wait
    return server


class Connection(asyncio.Protocol):
    """One client's connection; `keep`: for more than one request."""

    def __init__(self, handler: Handler, connections: OpenConnections, keep: bool = True) -> None:
        self._handler, self._connections = handler, connections
        self._buffer = bytearray()
        self._searched = 0  # how far the buffer was searched for the end of a head
        self._head: Head | None = None
        self._length: int | None = None  # of the body; None: in chunks
        self._chunks = Chunks()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._closing = not keep
        self._kept = self._lingers = self._paused = False

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._connections.add(self):
            self._give(HEAD_S, self._is_late)
        elif self._connections.may_tell(self):
            words = {**nemo_skills.refusal("too many connections: nothing was run"), "reason": "overloaded"}
            self._refuse(HttpResponse(503, words, {"Retry-After": "1"}))
        else:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._give(None)
        self._connections.discard(self)
        self._can_write.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        if self._lingers or self._transport.is_closing():
            return
        self._buffer += data
        if self._task is None:
            if self._kept:
                self._kept = False
                self._give(HEAD_S, self._is_late)
            self._advance()
        elif len(self._buffer) > HEAD_LIMIT and not self._paused:
            self._paused = True  # requests sent ahead wait at their sender
            self._transport.pause_reading()

    def finish(self) -> None:
        """No further request on this connection."""
        self._closing = True
        if self._task is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # -- time -------------------------------------------------------------------------------------------------------

    def _give(self, seconds: float | None, over: Callable[[], None] | None = None) -> None:
        """Call `over` after this time, unless something else comes first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and over is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, over)

    def _is_late(self) -> None:
        """The head, or the rest of a body, did not come."""
        if self._head is None and not self._buffer:
            self._transport.abort()  # it never asked for anything
        else:
            self._refuse(
                HttpResponse(408, nemo_skills.refusal("the request did not come to its end in time: nothing was run"))
            )

    def _is_unread(self) -> None:
        """Nothing is left to do; a client that still reads its answer is let."""
        unsent = self._transport.get_write_buffer_size()
        if unsent > 0 and unsent != self._unsent:
            self._unsent = unsent
            self._give(STALL_S, self._is_unread)
        else:
            self._transport.abort()

    # -- reading ----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Go on with what has arrived, as far as it goes."""
        try:
            request = self._next_request()
        except _Refused as refusal:
            self._refuse(HttpResponse(refusal.status, nemo_skills.refusal(str(refusal))))
            return
        if request is not None:
            self._give(None)
            self._task = asyncio.get_running_loop().create_task(self._answer(request))
        elif self._head is not None:
            self._give(STALL_S, self._is_late)

    def _refuse(self, response: HttpResponse) -> None:
        """Answer, and read no more of what the client sends than it takes for it to see the answer."""
        self._closing = self._lingers = True
        self._buffer, self._chunks = bytearray(), Chunks()
        self._write(response)
        self._transport.write_eof()
        self._give(LINGER_S, self._transport.abort)

    def _next_request(self) -> HttpRequest | None:
        if self._head is None and not self._take_head():
            return None
        head = self._head
        if head is None:
            return None  # it was refused
        body = self._chunks.take(self._buffer) if self._length is None else self._take_body(self._length)
        if body is None:
            return None
        self._head = None
        return HttpRequest(head.method, head.path, head.headers, body)

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n", self._searched)
        if end == -1 and len(self._buffer) <= HEAD_LIMIT:
            self._searched = max(0, len(self._buffer) - 3)
            return False
        self._searched = 0
        if not 0 <= end <= HEAD_LIMIT:
            raise _Refused(431, f"the head is too long: at most {HEAD_LIMIT >> 10} KB")
        head, is_last = _parsed(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        self._closing = self._closing or is_last
        refusal = self._handler.refusal(head)
        if refusal is not None:
            self._refuse(refusal)
            return False
        self._connections.is_busy(self)
        self._length, self._chunks = _body_length(head.headers), Chunks()
        self._head = head
        if head.headers.get("expect", "").lower() == "100-continue":
            self._transport.write(CONTINUE)
        return True

    def _take_body(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    # -- answering --------------------------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> None:
        try:
            response = await self._handler(request)
            if hasattr(response.content, "__aiter__"):
                await self._write_lines(response)
            else:
                self._write(response)
        except Exception:  # in the middle of an answer: a broken connection is the only way left to say so
            self._transport.abort()
            raise
        finally:
            self._task = None
        if self._closing:
            self._transport.close()
            self._give(STALL_S, self._is_unread)
            return
        self._kept = True
        self._connections.is_idle(self)
        self._give(KEEP_S, self._is_unread)
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._buffer:
            self.data_received(b"")

    def _write(self, response: HttpResponse) -> None:
        if isinstance(response.content, bytes):
            body, kind = response.content, "application/json"
        elif isinstance(response.content, str):
            body, kind = response.content.encode(), "text/plain; charset=utf-8"
        else:
            body, kind = json.dumps(response.content).encode(), "application/json"
        head = _head_of(response, {"Content-Type": kind, "Content-Length": str(len(body)), **self._ending()})
        self._transport.write(head + body)

    async def _write_lines(self, response: HttpResponse) -> None:
        kind = {"Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked"}
        self._transport.write(_head_of(response, {**kind, **self._ending()}))
        async for line in response.content:
            self._transport.write(b"%x\r\n%b\r\n" % (len(line), line))
            await self._can_write.wait()
        self._transport.write(b"0\r\n\r\n")

    def _ending(self) -> dict[str, str]:
        return {"Connection": "close"} if self._closing else {}


class Chunks:
    """Puts a body together from chunks, as they arrive."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._left: int | None = None  # bytes of the present chunk that are still to come; None: its line is
        self._is_last = False
        self._framing = 0

    def take(self, buffer: bytearray) -> bytes | None:
        """Take from the buffer what can be taken; the body when it is whole."""
        while True:
            if self._left is None:
                if not self._take_line(buffer):
                    return None
                continue
            taken = min(self._left, len(buffer))
            self._body += buffer[:taken]
            del buffer[:taken]
            self._left -= taken
            if self._left or len(buffer) < 2:
                return None
            if buffer[:2] != b"\r\n":
                raise _Refused(400, "a chunk is longer than its line says, or has trailers")
            del buffer[:2]
            self._left = None
            if self._is_last:
                return bytes(self._body)

    def _take_line(self, buffer: bytearray) -> bool:
        end = buffer.find(b"\r\n", 0, CHUNK_LINE_LIMIT)
        if end == -1:
            if len(buffer) >= CHUNK_LINE_LIMIT:
                raise _Refused(400, "a chunk's line has no end")
            return False
        size = bytes(buffer[:end]).partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(size):
            raise _Refused(400, "a chunk without a length")
        self._left = int(size, 16)
        self._is_last = self._left == 0
        self._framing += end + 4
        del buffer[: end + 2]
        if len(self._body) + self._left > BODY_LIMIT:
            raise _too_long()
        if self._framing > FRAMING_LIMIT + len(self._body):
            raise _Refused(400, "the chunks are too small")
        return True


def _parsed(data: bytes) -> tuple[Head, bool]:
    """A head, and whether the connection is over after its request."""
    text = data.decode("latin-1")
    first, *rest = text.split("\r\n")
    if len(rest) > HEADERS_MOST:
        raise _Refused(431, f"the head has too many lines: at most {HEADERS_MOST}")
    if _CONTROL.search(text):
        raise _Refused(400, "the head holds a control character")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _Refused(400, "this is not HTTP/1.1")
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Head(words[0], words[1], headers), words[2] == "HTTP/1.0" or headers.get("connection", "").lower() == "close"


def _body_length(headers: dict[str, str]) -> int | None:
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise _Refused(501, f"transfer encoding {coding} is not known")
        return None
    text = headers.get("content-length", "0")
    if not text.isdigit() or not text.isascii():
        raise _Refused(400, "Content-Length is no number")
    if not _LENGTH.fullmatch(text) or int(text) > BODY_LIMIT:
        raise _too_long()
    return int(text)


def _too_long() -> _Refused:
    return _Refused(413, f"the body is too long: at most {BODY_LIMIT >> 20} MB")


def _head_of(response: HttpResponse, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {REASONS.get(response.status, '')}"]
    given = {name.title(): value for name, value in response.headers.items()}
    lines += [f"{name}: {value}" for name, value in {**headers, **given}.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
