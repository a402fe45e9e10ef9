"""The HTTP parsers under random input: they refuse what is ambiguous, and all of them read the rest alike.

make test tries a few thousand inputs, make test-all a million.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from muster.sandbox.http import codec
from muster.sandbox.http.codec import ChunkDecoder, HttpRequest, ProtocolError
from muster.sandbox.http.request_reader import RequestReader

QUICK, LONG = 4_000, 1_000_000
METHODS = [b"GET", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"get", b"", b"P\xd6ST", b"G ET"]
PATHS = [b"/execute", b"/sessions/a", b"*", b"/", b"/a b", b"/\x00", b"http://h/x", b"/\xc3\xa9", b""]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.9", b"HTTP/2.0", b"HTTP/1.1 ", b"http/1.1", b""]
HEADERS = [
    b"Host: localhost",
    b"Content-Length: 5",
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Content-Length: 0x5",
    b"Content-Length: 5_0",
    b"Content-Length: \xb2",
    b"Content-Length: " + b"9" * 5000,
    b"content-length:5",
    b"Content-Length : 5",
    b" Content-Length: 5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding:\x0bchunked",
    b"X-Session-ID: \xc3\xa9",
    b"X-Session-ID: s",
    b"Connection: close",
    b"Connection: keep-alive, Close",
    b"Expect: 100-continue",
    b"\tfolded: x",
    b": empty",
    b"no colon",
    b"X: a\rb",
    b"X: a\nContent-Length: 9",
    b"X: a\0b",
]
BODIES = [
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"5;x=y\r\nhello\r\n0\r\n\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
]
BODIES += [
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"-1\r\n",
    b"5\r\nhel",
    b" 5\r\nhello\r\n0\r\n\r\n",
]
BODIES += [
    b"00000005\r\nhello\r\n0\r\n\r\n",
    b"000000005\r\nhello\r\n0\r\n\r\n",
    b"0\r\nX: y\r\n\r\n",
    b"5\r\nhelloGET / HTTP/1.1\r\n\r\n",
]


def make_message(rng: random.Random) -> bytes:
    """Return a request made of likely and unlikely parts, in most cases with some bytes changed."""
    lines = [b" ".join((rng.choice(METHODS[:5]), rng.choice(PATHS[:4]), VERSIONS[0]))]
    if rng.random() < 0.2:
        lines = [b" ".join((rng.choice(METHODS), rng.choice(PATHS), rng.choice(VERSIONS)))]
    lines += rng.choices(HEADERS, k=rng.randrange(5))
    message = bytearray(b"\r\n".join([*lines, b"", b""]) + rng.choice(BODIES))
    for _ in range(rng.choice((0, 0, 1, 2, 5))):
        place = rng.randrange(len(message) + 1)
        action = rng.randrange(4)
        if action == 0:
            message[place:place] = bytes([rng.randrange(256)])
        elif action == 1:
            del message[place : place + rng.randrange(1, 4)]
        elif action == 2:
            message[place:place] = rng.choice((b"\r\n", b"\n", b"\r", b" ", b":", b"\0", b"\t", b";"))
        else:
            other = rng.randrange(len(message) + 1)
            message[place:place] = message[min(place, other) : max(place, other)][:200]
    return bytes(message)


def requests_of(pieces: list[bytes]) -> tuple[list[HttpRequest], str]:
    """Return the requests in the input of one connection, and how it ends: by an error or for lack of more input."""
    reader, found = RequestReader(lambda head: True), []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (request := reader.next()) is not None:
                found.append(request)
    except ProtocolError as error:
        assert 400 <= error.status < 600
        return found, f"error {error.status}"
    return found, f"{reader.buffered} left" if reader.head is None else "in a body"


def try_request(rng: random.Random) -> bool:
    """Check one random input; return whether a request was accepted."""
    message = make_message(rng)
    whole = requests_of([message])
    cuts = sorted(rng.randrange(len(message) + 1) for _ in range(3))
    parts = [message[start:end] for start, end in zip([0, *cuts], [*cuts, len(message)], strict=True)]
    split = requests_of(parts)
    assert split[0] == whole[0], message
    if not whole[1].startswith("error"):
        assert split[1] == whole[1], message
    for request in whole[0]:
        check_forwarding(request)
    return bool(whole[0])


def check_forwarding(request: HttpRequest) -> None:
    """Check that a gateway that forwards the request sends exactly this one."""
    assert not set(request.headers) & {"content-length"} or "transfer-encoding" not in request.headers
    assert request.path.isascii() and " " not in request.path
    kept = {
        name: value for name, value in request.headers.items() if name not in ("content-length", "transfer-encoding")
    }
    forwarded, rest = requests_of([codec.request_bytes(request.method, request.path, kept, request.body)])
    assert rest == "0 left" and len(forwarded) == 1, (request, forwarded, rest)
    assert (forwarded[0].method, forwarded[0].path) == (request.method, request.path)
    assert forwarded[0].body == request.body
    assert {**forwarded[0].headers, "content-length": ""} == {**kept, "content-length": ""}


def try_response(rng: random.Random) -> bool:
    """Check one random head of a response; return whether it was accepted."""
    first = rng.choice(
        (b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 503 x", b"HTTP/1.1 99 x", b"HTTP/1.1 2000", b"x")
    )
    data = b"\r\n".join([first, *rng.choices(HEADERS, k=rng.randrange(4))])
    try:
        head = codec.parse_response_head(data)
        assert 100 <= head.status < 600 and (head.is_chunked or head.length >= 0)
    except ProtocolError:
        return False
    return True


def try_chunks(rng: random.Random) -> bool:
    """Check a chunked body that is read in two ways; return whether it was complete."""
    data = b"".join(rng.choices(BODIES[2:], k=rng.randrange(1, 3)))
    results = []
    for size in (len(data), rng.randrange(1, 9)):
        decoder, buffer, payload = ChunkDecoder(bounded=True), bytearray(), bytearray()
        try:
            for start in range(0, len(data), size):
                if decoder.is_complete:
                    break
                buffer += data[start : start + size]
                payload += decoder.decode(buffer)
            results.append((bytes(payload) if decoder.is_complete else None, decoder.is_complete))
        except ProtocolError:
            results.append((None, False))
    assert results[0] == results[1], data
    return results[0][1]


def run(attempt: Callable[[random.Random], bool], seed: int, count: int) -> None:
    rng, accepted = random.Random(seed), 0
    for _ in range(count):
        accepted += attempt(rng)
    assert 0.01 * count < accepted < 0.99 * count, f"{accepted} of {count} were accepted: the inputs are too much alike"


@pytest.mark.parametrize("attempt", [try_request, try_response, try_chunks])
def test_random_messages_are_refused_or_read_in_one_way(attempt: Callable[[random.Random], bool]) -> None:
    run(attempt, 1, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_million_random_messages_are_refused_or_read_in_one_way(part: int) -> None:
    run(try_request, 100 + part, 8 * LONG // 100)
    run(try_response, 200 + part, LONG // 100)
    run(try_chunks, 300 + part, LONG // 100)
