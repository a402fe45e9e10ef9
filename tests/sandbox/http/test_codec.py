"""HTTP messages as bytes: heads, lengths, chunks."""

from __future__ import annotations

import pytest
from tests.sandbox.http_messages import AMBIGUOUS

from muster.sandbox.http import codec
from muster.sandbox.http.codec import (
    HEAD_END,
    ChunkDecoder,
    HttpRequest,
    HttpResponse,
    ProtocolError,
    parse_request_head,
    request_bytes,
)


def test_a_chunked_body_is_decoded_wherever_it_is_cut() -> None:
    body = b"5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\n\r\n"
    for size in range(1, len(body) + 1):
        decoder, buffer, decoded = ChunkDecoder(bounded=False), bytearray(), b""
        for start in range(0, len(body), size):
            assert not decoder.is_complete
            buffer += body[start : start + size]
            decoded += decoder.decode(buffer)
        assert (decoded, decoder.is_complete, bytes(buffer)) == (b"hello!", True, b"")


@pytest.mark.parametrize("value", ["a\r\nAuthorization: x", "a\nb", "a\rb"])
def test_a_header_that_cannot_be_sent_as_it_is_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        request_bytes("GET", "/", {"X-Session-ID": value}, b"")


@pytest.mark.parametrize("name", ["\u65e5\u672c", "\xe9", "a..b", "\U0001f600"])
def test_a_session_s_name_is_the_same_after_it_was_sent(name: str) -> None:
    sent = request_bytes("GET", "/", {"X-Session-ID": name}, b"")
    assert parse_request_head(sent[: -len(HEAD_END)])[0].headers["x-session-id"] == name


def test_a_name_in_latin_1_is_read_too() -> None:
    assert parse_request_head("GET / HTTP/1.1\r\nX-Session-ID: \xe9".encode("latin-1"))[0].headers == {
        "x-session-id": "\xe9"
    }


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX: a\r\n folded",
        b"GET / HTTP/1.1\r\nContent-Length : 5",
        b"GET / HTTP/1.1\r\nX-Session-ID: a\r\nX-Session-ID: b",
        b"GET / HTTP/1.1\r\nHost: a\r\nhost: b",
        b"GET / HTTP/1.1\r\n: x",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET  / HTTP/1.1",
        b"GET / HTTP/2.0",
        b"GET /\xe9 HTTP/1.1",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_head_that_others_may_read_differently_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_request_head(head)


# -- heads ------------------------------------------------------------------------------------------------------------


def test_a_request_s_head_is_read() -> None:
    head, is_last = codec.parse_request_head(b"POST /a?b HTTP/1.1\r\nHost: x\r\nX-A:  1:2 ")
    assert (head.method, head.path, head.headers, is_last) == ("POST", "/a?b", {"host": "x", "x-a": "1:2"}, False)


@pytest.mark.parametrize(
    ("data", "is_last"),
    [
        (b"GET / HTTP/1.1", False),
        (b"GET / HTTP/1.0", True),
        (b"GET / HTTP/1.1\r\nConnection: Close", True),
        (b"GET / HTTP/1.1\r\nConnection: keep-alive", False),
    ],
)
def test_a_connection_ends_after_its_last_request(data: bytes, is_last: bool) -> None:
    assert codec.parse_request_head(data)[1] is is_last


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"GET /", 400),
        (b"GET / HTTP/2", 400),
        (b"GET /a b HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nA: b\x00", 400),
        (b"GET / HTTP/1.1\r\nA: b\rC: d", 400),
        (b"GET / HTTP/1.1" + b"\r\nA: b" * (codec.HEAD_LINES_MAX + 1), 431),
        *((b"GET / HTTP/1.1\r\n" + lengths[:-2], 400) for lengths in AMBIGUOUS),
    ],
)
def test_a_head_that_is_none_is_refused_with_its_status(data: bytes, status: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.parse_request_head(data)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("headers", "length"),
    [({}, 0), ({"content-length": "17"}, 17), ({"transfer-encoding": "Chunked"}, None)],
)
def test_the_length_of_a_body_is_known_from_the_head(headers: dict[str, str], length: int | None) -> None:
    assert codec.request_body_length(headers) == length


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-length": "-1"}, 400),
        ({"content-length": "1.0"}, 400),
        ({"content-length": "\u0663"}, 400),
        ({"content-length": str(codec.BODY_LIMIT + 1)}, 413),
        ({"content-length": "9" * 5000}, 413),
        ({"transfer-encoding": "gzip"}, 501),
    ],
)
def test_a_length_that_is_none_is_refused(headers: dict[str, str], status: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.request_body_length(headers)
    assert caught.value.status == status


def test_a_response_s_head_is_read() -> None:
    head = codec.parse_response_head(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 12\r\nConnection: close")
    assert (head.status, head.length, head.is_last, head.is_chunked) == (503, 12, True, False)
    assert codec.parse_response_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked").is_chunked


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 999 X", b"HTTP/2 200", b"SSH-2.0", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip"]
)
def test_what_is_no_response_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.parse_response_head(data)


def test_a_response_without_a_valid_length_has_none() -> None:
    for line in (b"", b"\r\nContent-Length: x", b"\r\nContent-Length: -1"):
        with pytest.raises(ProtocolError, match="no valid Content-Length"):
            _ = codec.parse_response_head(b"HTTP/1.1 200 OK" + line).length


# -- chunks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"x\r\n", 400),
        (b"-1\r\n", 400),
        (b"123456789\r\n", 400),
        (b"1" * codec.CHUNK_LINE_LIMIT, 400),
        (b"2\r\nabc\r\n", 400),
        (b"0\r\nTrailer: 1\r\n\r\n", 400),
        (b"%x\r\n" % (codec.BODY_LIMIT + 1), 413),
    ],
    ids=["no size", "negative", "too many digits", "no end", "too long", "trailer", "body too long"],
)
def test_chunks_that_are_none_are_refused(data: bytes, status: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        ChunkDecoder(bounded=True).decode(bytearray(data))
    assert caught.value.status == status


def test_a_flood_of_tiny_chunks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "CHUNK_OVERHEAD_LIMIT", 1000)
    with pytest.raises(ProtocolError, match="the chunks are too small"):
        ChunkDecoder(bounded=True).decode(bytearray(b"1\r\na\r\n" * 300))
    assert len(ChunkDecoder(bounded=True).decode(bytearray(b"9\r\n123456789\r\n" * 300))) == 2700
    assert len(ChunkDecoder(bounded=False).decode(bytearray(b"1\r\na\r\n" * 300))) == 300


def test_what_follows_a_chunked_body_stays_in_the_buffer() -> None:
    decoder, buffer = ChunkDecoder(bounded=True), bytearray(b"1\r\na\r\n0\r\n\r\nGET /")
    assert decoder.decode(buffer) == b"a" and decoder.is_complete and buffer == b"GET /"
    assert decoder.decode(buffer) == b"" and buffer == b"GET /"


# -- writing ----------------------------------------------------------------------------------------------------------


def test_a_request_is_written_as_it_is_read() -> None:
    head, _, body = request_bytes("POST", "/x", {"Host": "h", "X-A": "ä"}, b"body").partition(codec.HEAD_END)
    parsed, _ = codec.parse_request_head(head)
    assert parsed.headers == {"host": "h", "x-a": "ä", "content-length": "4"} and body == b"body"


@pytest.mark.parametrize(
    ("content", "kind", "body"),
    [
        ({"a": 1}, "application/json", b'{"a": 1}'),
        ("text ä", "text/plain; charset=utf-8", "text ä".encode()),
        (b"{}", "application/json", b"{}"),
    ],
)
def test_a_response_is_written_with_its_type(content: object, kind: str, body: bytes) -> None:
    for is_last in (False, True):
        data = codec.response_bytes(HttpResponse(200, content, {"x-muster-node": "n1"}), is_last)
        head, _, rest = data.partition(codec.HEAD_END)
        parsed = codec.parse_response_head(head)
        assert (parsed.headers["content-type"], parsed.length, rest) == (kind, len(body), body)
        assert parsed.is_last is is_last and parsed.headers["x-muster-node"] == "n1"


def test_a_header_of_a_response_replaces_ours() -> None:
    data = codec.response_bytes(HttpResponse(200, b"x", {"content-type": "text/x"}), False)
    assert data.lower().count(b"content-type") == 1 and b"text/x" in data


def test_a_stream_is_written_in_chunks() -> None:
    response = HttpResponse(200, None)
    data = codec.stream_head_bytes(response, False) + codec.chunk_bytes(b"line\n") + codec.LAST_CHUNK
    head, _, rest = data.partition(codec.HEAD_END)
    assert codec.parse_response_head(head).is_chunked
    assert ChunkDecoder(bounded=False).decode(bytearray(rest)) == b"line\n"


def test_a_body_is_json_or_an_error() -> None:
    assert HttpRequest("POST", "/", {}, b'{"a": [1]}').json() == {"a": [1]}
    for body in (b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(ValueError):
            HttpRequest("POST", "/", {}, body).json()
