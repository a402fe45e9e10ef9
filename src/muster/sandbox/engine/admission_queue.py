"""Who may run now. A fixed number of slots; behind them a bounded queue in three classes, each wait with its end.

class       waits                    served
SESSION     until its deadline       first, but never more than FAVOURS times in a row past a waiting program
PROGRAM     until its deadline       in turn
BATCH       as long as it takes      when nobody else waits (its caller reads results as they come)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SESSION, PROGRAM, BATCH = 0, 1, 2
FAVOURS = 4


class Overloaded(Exception):
    """Nothing was run; it may be sent again."""


class Admission:
    """Slots, and those who wait for one."""

    def __init__(self, slots: int, queue: int, wait_s: float) -> None:
        self.slots, self.queue, self.wait_s = slots, queue, wait_s
        self.running = 0
        self.refused = 0
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque(), deque())
        self._favours = 0
        self._closed = False

    @property
    def queued(self) -> int:
        return sum(map(len, self._waiting))

    @property
    def is_closed(self) -> bool:
        return self._closed

    @asynccontextmanager
    async def slot(self, kind: int) -> AsyncIterator[None]:
        """Hold a slot; raises Overloaded when there is none to be had in time."""
        if self._closed:
            raise Overloaded("the sandbox is stopping")
        if self.running < self.slots:  # so nobody waits
            self.running += 1
        else:
            await self._wait(kind)
        try:
            yield
        finally:
            self._give()

    async def _wait(self, kind: int) -> None:
        line = self._waiting[kind]
        if kind != BATCH and len(self._waiting[SESSION]) + len(self._waiting[PROGRAM]) >= self.queue:
            self.refused += 1
            raise Overloaded(f"all {self.slots} slots are busy and {self.queue} requests wait already")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        line.append(waiter)
        timer = None if kind == BATCH else loop.call_later(self.wait_s, self._give_up, line, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in line:
                line.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give()  # it was given in the same moment
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _give_up(self, line: deque[asyncio.Future[None]], waiter: asyncio.Future[None]) -> None:
        if waiter in line:
            line.remove(waiter)
            self.refused += 1
            if not waiter.done():
                waiter.set_exception(Overloaded(f"all {self.slots} slots were busy for {self.wait_s:g} s"))

    def _give(self) -> None:
        """The slot to whoever is next; to nobody when nobody waits."""
        while (waiter := self._next()) is not None:
            if not waiter.done():  # else it was cancelled just now, and does not know it yet
                waiter.set_result(None)
                return
        self.running -= 1

    def _next(self) -> asyncio.Future[None] | None:
        sessions, programs, batches = self._waiting
        if sessions and (self._favours < FAVOURS or not (programs or batches)):
            self._favours += 1
            return sessions.popleft()
        self._favours = 0
        for line in (programs, batches, sessions):
            if line:
                return line.popleft()
        return None

    def close(self) -> None:
        """Nobody is admitted any more, and those who wait are told."""
        self._closed = True
        for line in self._waiting:
            for waiter in line:
                if not waiter.done():
                    waiter.set_exception(Overloaded("the sandbox is stopping"))
            line.clear()
