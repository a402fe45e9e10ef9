"""HTTP/1.1 messages as bytes, for the server, the gateway and both clients: no sockets, no tasks.

The length of a body must have exactly one reading. A head with Transfer-Encoding and Content-Length, or with either of
them twice, is refused: a proxy that reads it differently would take a part of one message for the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from muster.sandbox.http import large_json

HEAD_LIMIT = 32 << 10  # bytes; the default of common servers
HEAD_LINES_MAX = 100
BODY_LIMIT = 64 << 20
CHUNK_LINE_LIMIT = 1 << 10
CHUNK_OVERHEAD_LIMIT = 1 << 20  # bytes of chunk framing beyond the size of the body: refuses floods of tiny chunks
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
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
HEAD_END = b"\r\n\r\n"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)")  # other parsers may split a line there
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST = re.compile(rf"({_TOKEN}) ([!-~]+) HTTP/1\.([01])")
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-5][0-9]{2})( .*)?")
_HEADER = re.compile(rf"({_TOKEN}):(.*)")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_LENGTH = re.compile(r"[0-9]{1,18}")
# A second one of these would let two parsers see two different requests.
SINGLE_HEADERS = (
    "authorization",
    "content-length",
    "content-type",
    "expect",
    "host",
    "origin",
    "transfer-encoding",
    "x-client-id",
    "x-client-secret",
    "x-session-id",
    "x-session-must-exist",
    "x-workspace-id",
)


class ProtocolError(ValueError):
    """A message that violates HTTP or a limit; `status` is the answer if it is a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class RequestHead:
    """The request line and headers; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class HttpRequest(RequestHead):
    """A request with its body; `user` is the id of the user who sent it from this node, where that is known."""

    body: bytes
    user: int | None = None

    def json(self) -> Any:
        """Return the body as JSON; raise ValueError if it is not JSON. For a large body call it in a thread first."""
        value, error = self._json
        if error is not None:
            raise error
        return value

    @cached_property
    def _json(self) -> tuple[Any, ValueError | None]:
        try:
            return (large_json.load if len(self.body) > large_json.LARGE else json.loads)(self.body), None
        except ValueError as error:
            return None, error
        except RecursionError:
            return None, ValueError("nested too deeply")


@dataclass(frozen=True)
class ResponseHead:
    """The status and headers of a response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    is_last: bool  # the connection takes no further request

    @property
    def is_interim(self) -> bool:
        """Whether another response follows to the same request."""
        return self.status < 200

    @property
    def is_chunked(self) -> bool:
        return "transfer-encoding" in self.headers

    @property
    def length(self) -> int:
        """The body's length in bytes; raise ProtocolError if the head does not have one."""
        text = self.headers.get("content-length", "")
        if not _LENGTH.fullmatch(text):
            raise ProtocolError(502, "the response has no valid Content-Length")
        return int(text)


@dataclass(frozen=True)
class HttpResponse:
    """A response to write: text, bytes, an object that is sent as JSON, or an asynchronous iterator of lines."""

    status: int
    content: Any
    headers: dict[str, str] = field(default_factory=dict)


# -- reading ----------------------------------------------------------------------------------------------------------


def parse_request_head(data: bytes) -> tuple[RequestHead, bool]:
    """Return the head (given without HEAD_END), and whether the connection ends after its request."""
    first, lines = _head_lines(data)
    matched = _REQUEST.fullmatch(first)
    if matched is None:
        raise ProtocolError(400, "this is not a request of HTTP/1.1")
    method, path, version = matched.groups()
    headers = _parse_headers(lines)
    if version == "0" and "transfer-encoding" in headers:
        raise ProtocolError(400, "HTTP/1.0 has no Transfer-Encoding")
    return RequestHead(method, path, headers), version == "0" or _ends_connection(headers)


def parse_response_head(data: bytes) -> ResponseHead:
    """Return the head of a response, given without HEAD_END; raise ProtocolError."""
    first, lines = _head_lines(data)
    matched = _STATUS.fullmatch(first)
    if matched is None:
        raise ProtocolError(502, f"this is not an HTTP/1.1 response: {first[:100]!r}")
    headers = _parse_headers(lines)
    if headers.get("transfer-encoding", "chunked").lower() != "chunked":
        raise ProtocolError(502, f"unknown transfer encoding {headers['transfer-encoding']}")
    return ResponseHead(int(matched[2]), headers, matched[1] == "0" or _ends_connection(headers))


def _head_lines(data: bytes) -> tuple[str, list[str]]:
    text = data.decode("latin-1")
    first, *lines = text.split("\r\n")
    if len(lines) > HEAD_LINES_MAX:
        raise ProtocolError(431, f"the head has too many lines: at most {HEAD_LINES_MAX}")
    if _CONTROL.search(text):
        raise ProtocolError(400, "the head contains a control character")
    return first, lines


def _parse_headers(lines: list[str]) -> dict[str, str]:
    """Return the headers; of one that is repeated the values as a list, unless it may occur only once."""
    headers: dict[str, str] = {}
    for line in lines:
        matched = _HEADER.fullmatch(line)
        if matched is None:
            raise ProtocolError(400, "a header has no valid name, or continues on a second line")
        name, value = matched[1].lower(), _text(matched[2].strip(" \t"))
        if name in headers:
            if name in SINGLE_HEADERS:
                raise ProtocolError(400, f"the header {name} is repeated")
            value = ", ".join(filter(None, (headers[name], value)))
        headers[name] = value
    if "transfer-encoding" in headers and "content-length" in headers:
        raise ProtocolError(400, "the head has both Content-Length and Transfer-Encoding")
    return headers


def _text(value: str) -> str:
    """Return the text of a value that was read as Latin-1: many clients send UTF-8."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        return value


def _ends_connection(headers: Mapping[str, str]) -> bool:
    return "close" in [option.strip().lower() for option in headers.get("connection", "").split(",")]


def request_body_length(headers: Mapping[str, str]) -> int | None:
    """Return the length of a request's body in bytes, None if it comes in chunks; raise ProtocolError."""
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise ProtocolError(501, f"unknown transfer encoding {coding}")
        return None
    text = headers.get("content-length", "0")
    if not text.isascii() or not text.isdigit():
        raise ProtocolError(400, "Content-Length is not a number")
    if not _LENGTH.fullmatch(text) or int(text) > BODY_LIMIT:
        raise _too_long()
    return int(text)


def _too_long() -> ProtocolError:
    return ProtocolError(413, f"the body is too long: at most {BODY_LIMIT >> 20} MB")


class ChunkDecoder:
    """Decodes one chunked body as it arrives. `bounded`: enforce the limits of request bodies."""

    def __init__(self, bounded: bool) -> None:
        self._bounded = bounded
        self._missing: int | None = None  # bytes of the current chunk; None: its size line comes next
        self._is_last = False
        self._decoded = self._overhead = 0
        self.is_complete = False

    def decode(self, buffer: bytearray) -> bytes:
        """Remove from the buffer what can be decoded, and return its payload; raise ProtocolError."""
        payload = bytearray()
        while not self.is_complete:
            if self._missing is None:
                if not self._decode_size(buffer):
                    break
                continue
            size = min(self._missing, len(buffer))
            payload += buffer[:size]
            del buffer[:size]
            self._missing -= size
            self._decoded += size
            if self._missing or len(buffer) < 2:
                break
            if buffer[:2] != b"\r\n":
                raise ProtocolError(400, "a chunk is longer than its size, or trailers follow the last one")
            del buffer[:2]
            self._missing = None
            self.is_complete = self._is_last
        return bytes(payload)

    def _decode_size(self, buffer: bytearray) -> bool:
        end = buffer.find(b"\r\n", 0, CHUNK_LINE_LIMIT)
        if end == -1:
            if len(buffer) >= CHUNK_LINE_LIMIT:
                raise ProtocolError(400, "the size line of a chunk is too long")
            return False
        matched = _CHUNK_LINE.fullmatch(bytes(buffer[:end]))
        if matched is None:
            raise ProtocolError(400, "a chunk has no valid size")
        self._missing = int(matched[1], 16)
        self._is_last = self._missing == 0
        self._overhead += end + 4
        del buffer[: end + 2]
        if self._bounded and self._decoded + self._missing > BODY_LIMIT:
            raise _too_long()
        if self._bounded and self._overhead > CHUNK_OVERHEAD_LIMIT + self._decoded:
            raise ProtocolError(400, "the chunks are too small")
        return True


# -- writing ----------------------------------------------------------------------------------------------------------


def request_bytes(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a request; raise ValueError if a header or the path contains a line break."""
    head = _head_text(f"{method} {path} HTTP/1.1", {**headers, "Content-Length": str(len(body))})
    if not head.count("\r") == head.count("\n") == len(headers) + 3:
        raise ValueError("a header or the path contains a line break")
    return head.encode() + body


def response_bytes(response: HttpResponse, is_last: bool, has_body: bool = True) -> bytes:
    """Return a response whose content is not an iterator. `is_last`: announce the end of the connection.

    Without `has_body`, for HEAD, it has only the length of the body.
    """
    if isinstance(response.content, bytes):
        body, kind = response.content, "application/json"
    elif isinstance(response.content, str):
        body, kind = response.content.encode(), "text/plain; charset=utf-8"
    else:
        body, kind = json.dumps(response.content).encode(), "application/json"
    head = _response_head(response, {"Content-Type": kind, "Content-Length": str(len(body))}, is_last)
    return head + body if has_body else head


def stream_head_bytes(response: HttpResponse, is_last: bool) -> bytes:
    """Return the head of a response whose body follows in chunks (`chunk_bytes`, then LAST_CHUNK)."""
    return _response_head(response, {"Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked"}, is_last)


def chunk_bytes(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _response_head(response: HttpResponse, headers: dict[str, str], is_last: bool) -> bytes:
    given = {name.title(): value for name, value in response.headers.items()}
    closing = {"Connection": "close"} if is_last else {}
    first = f"HTTP/1.1 {response.status} {REASONS.get(response.status, '')}"
    return _head_text(first, {**headers, **closing, **given}).encode("latin-1", "replace")


def _head_text(first: str, headers: Mapping[str, str]) -> str:
    return "\r\n".join([first, *(f"{name}: {value}" for name, value in headers.items()), "", ""])
