"""HTTP/1.1 on asyncio: as much of it as clients of a JSON service use. Requests of one connection are answered in turn.

A lost connection cancels the handler of its request: nobody is there to read the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Callable

from muster.sandbox import contract

HEAD_LIMIT = 64 << 10
BODY_LIMIT = 64 << 20
REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict",
    413: "Content Too Large", 500: "Internal Server Error", 501: "Not Implemented",
    502: "Bad Gateway", 503: "Service Unavailable",
    504: "Gateway Timeout",
}  # fmt: skip
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True)
class Request:
    """Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """ValueError when it is none."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None


@dataclass(frozen=True)
class Response:
    """Text, bytes, or an object that is sent as JSON, or lines that come one after the other."""

    status: int
    content: Any
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Connection(asyncio.Protocol):
    """One client's connection; `keep`: for more than one request."""

    def __init__(self, handler: Handler, connections: set[Connection], keep: bool = True) -> None:
        self._handler, self._connections = handler, connections
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[str, str]] | None = None
        self._length: int | None = None  # of the body; None: in chunks
        self._chunks = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._closing = not keep

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._can_write.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None:
            self._advance()
        elif len(self._buffer) > BODY_LIMIT:
            self._transport.abort()

    def finish(self) -> None:
        """No further request on this connection."""
        self._closing = True
        if self._task is None:
            self._transport.close()

    # -- reading ----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Go on with what has arrived, as far as it goes."""
        try:
            request = self._next_request()
        except _Refused as refusal:
            self._closing = True
            self._write(Response(refusal.status, contract.refusal(str(refusal))))
            self._transport.close()
            return
        if request is not None:
            self._task = asyncio.get_running_loop().create_task(self._answer(request))

    def _next_request(self) -> Request | None:
        if self._head is None and not self._take_head():
            return None
        assert self._head is not None
        body = self._take_body()
        if body is None:
            return None
        method, path, headers = self._head
        self._head = None
        return Request(method, path, headers, body)

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end == -1:
            if len(self._buffer) > HEAD_LIMIT:
                raise _Refused(413, "the head is too long")
            return False
        first, *rest = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _Refused(400, "this is not HTTP/1.1")
        headers = {}
        for line in rest:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._head = words[0], words[1], headers
        self._closing = self._closing or words[2] == "HTTP/1.0" or headers.get("connection", "").lower() == "close"
        self._length = _body_length(headers)
        if headers.get("expect", "").lower() == "100-continue":
            self._transport.write(CONTINUE)
        return True

    def _take_body(self) -> bytes | None:
        if self._length is None:
            return self._take_chunks()
        if len(self._buffer) < self._length:
            return None
        body = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        return body

    def _take_chunks(self) -> bytes | None:
        while True:
            end = self._buffer.find(b"\r\n")
            if end == -1:
                return None
            try:
                size = int(self._buffer[:end].partition(b";")[0], 16)
            except ValueError:
                raise _Refused(400, "a chunk without a length") from None
            if size < 0 or len(self._chunks) + size > BODY_LIMIT:
                raise _Refused(413, "the body is too long")
            if len(self._buffer) < end + 2 + size + 2:
                return None
            self._chunks += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 2 + size + 2]
            if size == 0:
                body, self._chunks = bytes(self._chunks), bytearray()
                return body

    # -- answering --------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> None:
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
        elif self._buffer:
            self._advance()

    def _write(self, response: Response) -> None:
        if isinstance(response.content, bytes):
            body, kind = response.content, "application/json"
        elif isinstance(response.content, str):
            body, kind = response.content.encode(), "text/plain; charset=utf-8"
        else:
            body, kind = json.dumps(response.content).encode(), "application/json"
        head = _head_of(response, {"Content-Type": kind, "Content-Length": str(len(body)), **self._ending()})
        self._transport.write(head + body)

    async def _write_lines(self, response: Response) -> None:
        kind = {"Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked"}
        self._transport.write(_head_of(response, {**kind, **self._ending()}))
        async for line in response.content:
            self._transport.write(b"%x\r\n%b\r\n" % (len(line), line))
            await self._can_write.wait()
        self._transport.write(b"0\r\n\r\n")

    def _ending(self) -> dict[str, str]:
        return {"Connection": "close"} if self._closing else {}


def _body_length(headers: dict[str, str]) -> int | None:
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise _Refused(501, f"transfer encoding {coding} is not known")
        return None
    text = headers.get("content-length", "0")
    if not text.isdigit():
        raise _Refused(400, "Content-Length is no number")
    if int(text) > BODY_LIMIT:
        raise _Refused(413, f"the body is too long: at most {BODY_LIMIT >> 20} MB")
    return int(text)


def _head_of(response: Response, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {REASONS.get(response.status, '')}"]
    given = {name.title(): value for name, value in response.headers.items()}
    lines += [f"{name}: {value}" for name, value in {**headers, **given}.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
