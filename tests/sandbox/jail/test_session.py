"""A session in its process: cells are answered in order, keep their state, and can be interrupted."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.sandbox import forked

from muster.sandbox.jail import session, wire
from muster.sandbox.jail.session import InterruptGuard

DEADLINE_S = 120.0


class ForkedSession:
    """A session in a forked process, and the engine's end of its socket."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(DEADLINE_S)
        read, write = os.pipe()

        def serve() -> None:
            self.channel.close()
            os.close(read)
            os.dup2(write, 1)
            session.serve(theirs, "repl")

        self.pid = forked.start(serve)
        theirs.close()
        os.close(write)
        self.output = read

    def send(self, number: int, code: str, **more: float) -> None:
        wire.send_job(self.channel, {"cell": number, "code": code, "verbosity": "Minimal", **more}, b"")

    def receive(self) -> dict[str, Any] | None:
        return wire.receive(self.channel)[0]

    def cell(self, number: int, code: str) -> dict[str, Any] | None:
        self.send(number, code)
        return self.receive()


@pytest.fixture
def opened() -> Iterator[ForkedSession]:
    """A session that has reported that it is open."""
    made = ForkedSession()
    assert made.receive() == {"event": "open"}
    yield made
    made.channel.close()
    assert forked.exit_code(made.pid) == 0  # it ends with the engine
    os.close(made.output)


def test_cells_are_answered_with_their_numbers_and_keep_their_state(opened: ForkedSession) -> None:
    assert opened.cell(1, "x = 20") == {"event": "done", "cell": 1, "failed": False}
    assert opened.cell(2, "x + 22") == {"event": "done", "cell": 2, "failed": False}
    assert opened.cell(3, "1 / 0") == {"event": "done", "cell": 3, "failed": True}
    assert os.read(opened.output, 1000) == b"42\nZeroDivisionError: division by zero\n"


def test_a_cell_longer_than_a_packet_is_run(opened: ForkedSession) -> None:
    long = f"print(len({'x' * (2 * wire.PACKET)!r}))"
    assert opened.cell(1, long) == {"event": "done", "cell": 1, "failed": False}
    assert os.read(opened.output, 1000) == b"%d\n" % (2 * wire.PACKET)


def test_an_interrupt_ends_the_cell_and_not_the_session(opened: ForkedSession) -> None:
    opened.send(1, "kept = 5\nprint('begun', flush=True)\nwhile True: pass")
    assert os.read(opened.output, 6) == b"begun\n"
    os.kill(opened.pid, signal.SIGINT)
    assert opened.receive() == {"event": "done", "cell": 1, "failed": True}
    assert os.read(opened.output, 1000) == b"KeyboardInterrupt\n"
    opened.cell(2, "kept")
    assert os.read(opened.output, 1000) == b"5\n"


def test_an_interrupt_between_two_cells_has_no_effect(opened: ForkedSession) -> None:
    opened.cell(1, "x = 1")
    os.kill(opened.pid, signal.SIGINT)
    assert opened.cell(2, "x") == {"event": "done", "cell": 2, "failed": False}


def test_a_cell_whose_time_is_over_before_it_begins_is_interrupted_at_once(opened: ForkedSession) -> None:
    opened.send(1, "while True: pass", deadline=0.001)
    assert opened.receive() == {"event": "done", "cell": 1, "failed": True}
    assert opened.cell(2, "2") == {"event": "done", "cell": 2, "failed": False}


def test_the_guard_raises_only_while_a_cell_runs() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        guard = InterruptGuard()
        guard.on_interrupt(signal.SIGINT, None)
        guard.cell_is_running = True
        with pytest.raises(KeyboardInterrupt):
            guard.on_interrupt(signal.SIGINT, None)
        guard.begin(time.monotonic() + 600)
        guard.on_interrupt(signal.SIGINT, None)  # for an earlier cell: this one has time left
        with pytest.raises(KeyboardInterrupt):
            guard.begin(time.monotonic())
    finally:
        signal.signal(signal.SIGINT, before)


def test_help_is_shown_as_text() -> None:
    assert session._text({"text/plain": "help", "text/html": "<b>"}) == "help"
    assert session._text("help") == "help" and session._text({}) == ""
