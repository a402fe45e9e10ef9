"""Packets between the engine and its processes: messages, descriptors, jobs of any length."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from muster.sandbox.jail import wire

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield one, other


def test_a_message_arrives_with_its_descriptors(pair: Pair) -> None:
    read, write = os.pipe()
    wire.send(pair[0], {"event": "born", "text": "grüße"}, (read, write))
    os.close(read)
    os.close(write)
    message, fds = wire.receive(pair[1])
    assert message == {"event": "born", "text": "grüße"} and len(fds) == 2
    assert not any(os.get_inheritable(fd) for fd in fds)
    os.write(fds[1], b"x")
    assert os.read(fds[0], 10) == b"x"
    for fd in fds:
        os.close(fd)


def test_messages_keep_their_borders(pair: Pair) -> None:
    wire.send_bytes(pair[0], b"one", ())
    wire.send_bytes(pair[0], b"two", ())
    assert [wire.receive_bytes(pair[1]), wire.receive_bytes(pair[1])] == [(b"one", []), (b"two", [])]


@pytest.mark.parametrize("unread", [b"", b"never read"], ids=["closed", "reset"])
def test_the_end_of_the_other_side_is_an_empty_packet(pair: Pair, unread: bytes) -> None:
    if unread:
        pair[1].send(unread)  # the kernel then reports a reset connection
    pair[0].close()
    assert wire.receive_bytes(pair[1]) == (b"", [])
    assert wire.receive(pair[1]) == (None, [])


@pytest.mark.parametrize(
    ("job", "stdin"),
    [
        ({"do": "python", "code": "print(1)"}, b""),
        ({"do": "python", "code": "grüße \udcff"}, b"input\n\x00"),
        ({"do": "python", "code": "x" * (3 * wire.PACKET)}, b""),
        ({"do": "python", "code": "x" * (3 * wire.PACKET)}, b"y" * (2 * wire.PACKET)),
    ],
    ids=["short", "with input", "long", "long with input"],
)
def test_a_job_arrives_with_its_input(pair: Pair, job: dict[str, Any], stdin: bytes) -> None:
    wire.send_job(pair[0], job, stdin)
    found, rest = wire.receive_job(pair[1])
    assert found == job
    if rest is None:
        assert not stdin and len(job["code"]) < wire.PACKET
    else:
        with os.fdopen(rest, "rb") as file:
            assert file.read() == stdin


def test_a_job_for_nobody(pair: Pair) -> None:
    pair[0].close()
    assert wire.receive_job(pair[1]) == (None, None)
    with pytest.raises(ConnectionError):
        wire.send_job(pair[1], {"do": "python"}, b"")


def test_a_file_in_memory_cannot_be_changed() -> None:
    fd = wire.in_memory([b"one", b"two"])
    with os.fdopen(fd, "rb") as file:
        assert file.read() == b"onetwo"
        with pytest.raises(PermissionError):
            os.write(fd, b"three")
