"""Messages to many agents, encoded and written in slices that return to the event loop.

The end of a round makes thousands of messages in one event. While they are written the leader reads no answers and
sends no heartbeats, so only a slice of time is spent on them in each turn of the loop. The order of messages is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from muster.agent.control.channel import Channel
from muster.agent.control.codec import Message

OUTBOX_SLICE_S = 0.02  # of each turn of the loop


class Outbox:
    """Writes messages at once while the slice of this turn lasts, and the others in the following turns."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Channel, Message | bytes]] = deque()
        self._slice_end = 0.0  # of this turn
        self._in_turn = False  # something was written in this turn
        self._empty = asyncio.Event()
        self._empty.set()

    def post(self, channel: Channel, message: Message | bytes) -> None:
        """Write a message, or the line of an encoded one, after all earlier ones."""
        if not self._in_turn:
            self._begin_slice()
        if self._queue or time.monotonic() >= self._slice_end:
            self._queue.append((channel, message))
            self._empty.clear()
        else:
            _write(channel, message)

    async def drain(self) -> None:
        """Wait until all messages are written."""
        await self._empty.wait()

    def _begin_slice(self) -> None:
        self._in_turn, self._slice_end = True, time.monotonic() + OUTBOX_SLICE_S
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._in_turn = False
        if not self._queue:
            return
        self._begin_slice()
        while self._queue and time.monotonic() < self._slice_end:
            _write(*self._queue.popleft())
        if not self._queue:
            self._empty.set()


def _write(channel: Channel, message: Message | bytes) -> None:
    if isinstance(message, bytes):
        channel.send_line(message)
    else:
        channel.send(message)
