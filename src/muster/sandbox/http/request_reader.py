"""Requests from the bytes of one connection, as they arrive: no sockets, no tasks, no clock."""

from __future__ import annotations

from typing import Callable

from muster.sandbox.http import codec
from muster.sandbox.http.codec import HEAD_END, HEAD_LIMIT, ChunkDecoder, HttpRequest, ProtocolError, RequestHead


class RequestReader:
    """Collects input and returns one request after the other."""

    def __init__(self, admit: Callable[[RequestHead], bool]) -> None:
        """`admit` decides by its head whether a request is read; nothing of its body is kept before."""
        self._admit = admit
        self._buffer = bytearray()
        self._searched = 0  # how far the buffer was searched for the end of a head
        self._length: int | None = None  # of the body; None: in chunks
        self._chunks, self._chunked_body = ChunkDecoder(bounded=True), bytearray()
        self.head: RequestHead | None = None  # of the request whose body is being read
        self.is_last = False  # the connection ends after the last request whose head was read

    @property
    def buffered(self) -> int:
        """The number of bytes that belong to no complete request."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def clear(self) -> None:
        self._buffer, self._chunked_body = bytearray(), bytearray()

    def next(self) -> HttpRequest | None:
        """Return the next complete request, None if there is none or it was not admitted; raise ProtocolError."""
        if self.head is None and not self._read_head():
            return None
        head = self.head
        assert head is not None
        body = self._read_chunked() if self._length is None else self._read_body(self._length)
        if body is None:
            return None
        self.head = None
        return HttpRequest(head.method, head.path, head.headers, body)

    def _read_head(self) -> bool:
        end = self._buffer.find(HEAD_END, self._searched)
        if end == -1 and len(self._buffer) <= HEAD_LIMIT:
            self._searched = max(0, len(self._buffer) - 3)
            return False
        self._searched = 0
        if not 0 <= end <= HEAD_LIMIT:
            raise ProtocolError(431, f"the head is too long: at most {HEAD_LIMIT >> 10} KB")
        head, self.is_last = codec.parse_request_head(bytes(self._buffer[:end]))
        del self._buffer[: end + len(HEAD_END)]
        if not self._admit(head):
            return False
        self._length = codec.request_body_length(head.headers)
        self._chunks, self._chunked_body = ChunkDecoder(bounded=True), bytearray()
        self.head = head
        return True

    def _read_chunked(self) -> bytes | None:
        self._chunked_body += self._chunks.decode(self._buffer)
        if not self._chunks.is_complete:
            return None
        body, self._chunked_body = bytes(self._chunked_body), bytearray()
        return body

    def _read_body(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        with memoryview(self._buffer) as view:
            body = bytes(view[:length])
        del self._buffer[:length]
        return body
