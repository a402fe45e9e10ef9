"""The engine's side of an execution: the job, whether it was received, messages of a session, output."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.sandbox.engine.execution import Execution
from muster.sandbox.jail import wire

DEADLINE_S = 120.0


class Peer:
    """The descriptors that the process of an execution has."""

    def __init__(self, execution: Execution) -> None:
        job, self.out, self.err = (os.dup(fd) for fd in execution.descriptors)
        self.socket = socket.socket(fileno=job)
        execution.close_child_ends()

    def close(self) -> None:
        self.socket.close()
        os.close(self.out)
        os.close(self.err)


@pytest.fixture
async def execution() -> AsyncIterator[Execution]:
    made = Execution()
    yield made
    made.close()


async def test_a_job_that_the_process_reads_was_received(execution: Execution) -> None:
    peer = Peer(execution)
    execution.send({"do": "python", "code": "1"})
    assert wire.receive_job(peer.socket) == ({"do": "python", "code": "1"}, None)
    assert not execution.was_not_received
    peer.close()
    assert not execution.was_not_received


async def test_a_job_that_the_process_never_read_was_not_received(execution: Execution) -> None:
    peer = Peer(execution)
    execution.send({"do": "python", "code": "1"})
    peer.close()
    assert execution.was_not_received and execution.was_not_received


async def test_a_job_for_a_process_that_has_ended_was_not_received(execution: Execution) -> None:
    Peer(execution).close()
    execution.send({"do": "python", "code": "1"}, b"input")
    assert execution.was_not_received


async def test_output_is_read_while_it_is_wanted(execution: Execution) -> None:
    peer = Peer(execution)
    os.write(peer.out, b"before ")
    execution.begin(100)
    os.write(peer.out, b"during")
    os.write(peer.err, b"error")
    assert execution.stdout.finish().data == b"before during" and execution.stderr.finish().data == b"error"
    os.set_blocking(peer.out, False)
    with pytest.raises(BlockingIOError):  # between two cells nothing is read: a process that keeps writing blocks
        for _ in range(1000):
            os.write(peer.out, b"x" * 65536)
            await asyncio.sleep(0)
    peer.close()


async def test_more_output_than_a_pipe_holds_does_not_block_the_process(execution: Execution) -> None:
    peer = Peer(execution)
    execution.begin(10)
    for _ in range(10):
        await asyncio.to_thread(os.write, peer.out, b"x" * 60_000)
    peer.close()
    captured = execution.stdout.finish()
    assert captured.more and captured.text(10) == "x" * 10 + "<output cut>"


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (b'{"event": "open"}', {"event": "open"}),
        (b"[1, 2]", None),
        (b"not json", None),
        (b"[" * 5000, None),
        (b"\xff", None),
    ],
    ids=["message", "list", "no json", "nested", "no text"],
)
async def test_a_packet_of_a_session_is_a_message_or_its_end(
    execution: Execution, packet: bytes, message: dict[str, Any] | None
) -> None:
    """Untrusted code has the other end of the socket."""
    peer = Peer(execution)
    received: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    execution.on_message(received.put_nowait)
    peer.socket.send(packet)
    assert await asyncio.wait_for(received.get(), DEADLINE_S) == message
    peer.close()


async def test_the_end_of_a_session_is_told_once(execution: Execution) -> None:
    peer = Peer(execution)
    received: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    execution.on_message(received.put_nowait)
    peer.close()
    assert await asyncio.wait_for(received.get(), DEADLINE_S) is None
    for _ in range(10):
        await asyncio.sleep(0)  # a reader that was left would be called in each round of the loop
    assert received.empty()
