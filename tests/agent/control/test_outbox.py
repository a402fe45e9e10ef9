"""Messages to many agents: at once if they are few, else in slices between which the loop does other work."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest

from muster.agent.control import outbox as outbox_module
from muster.agent.control.messages import StopCheck
from muster.agent.control.outbox import Outbox


class SlowChannel:
    """Takes a whole slice to write a message."""

    def __init__(self, written: list[Any], clock: list[float], seconds: float) -> None:
        self._written, self._clock, self._seconds = written, clock, seconds

    def send(self, message: Any) -> None:
        self._clock[0] += self._seconds
        self._written.append(message)

    send_line = send


class Clock:
    """A clock that only writing moves."""

    def __init__(self, now: list[float]) -> None:
        self.monotonic = lambda: now[0]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [time.monotonic()]
    monkeypatch.setattr(outbox_module, "time", Clock(now))
    return now


async def test_a_few_messages_are_written_at_once(now: list[float]) -> None:
    outbox, written = Outbox(), list[Any]()
    channel: Any = SlowChannel(written, now, 0.0)
    outbox.post(channel, StopCheck())
    outbox.post(channel, b"line")
    assert written == [StopCheck(), b"line"]
    await outbox.drain()


async def test_many_messages_return_to_the_loop_after_each_slice_and_keep_their_order(now: list[float]) -> None:
    outbox, written, turns = Outbox(), list[Any](), list[int]()
    channel: Any = SlowChannel(written, now, outbox_module.OUTBOX_SLICE_S / 3.9)  # so that four exceed a slice

    async def other_work() -> None:
        while len(written) < 40:
            turns.append(len(written))
            await asyncio.sleep(0)

    for number in range(40):
        outbox.post(channel, b"%d" % number)
    assert len(written) == 4  # those of one slice
    other = asyncio.ensure_future(other_work())
    outbox.post(channel, b"40")
    await outbox.drain()
    await other
    assert written == [b"%d" % number for number in range(41)]
    assert all(later - earlier <= 4 for earlier, later in pairwise(turns)) and len(turns) >= 8


async def test_messages_that_come_while_others_wait_are_written_after_them(now: list[float]) -> None:
    outbox, written = Outbox(), list[Any]()
    slow: Any = SlowChannel(written, now, outbox_module.OUTBOX_SLICE_S)
    quick: Any = SlowChannel(written, now, 0.0)
    outbox.post(slow, b"first")
    outbox.post(slow, b"second")
    await asyncio.sleep(0)  # the next turn writes it
    outbox.post(quick, b"third")
    await outbox.drain()
    assert written == [b"first", b"second", b"third"]
