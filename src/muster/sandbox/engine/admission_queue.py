"""Admission control: a fixed number of slots, and behind them a bounded queue in three classes.

class       waits                        served
SESSION     at most wait_s               first, but at most MAX_SESSIONS_IN_A_ROW times past a waiting program or batch
PROGRAM     at most wait_s               in order of arrival
BATCH       without a limit              when no other class waits (its caller reads results as they arrive)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SESSION, PROGRAM, BATCH = 0, 1, 2
MAX_SESSIONS_IN_A_ROW = 4


class Overloaded(Exception):
    """The request was refused before anything ran; it may be sent again."""


class Admission:
    """The slots and the requests that wait for one."""

    def __init__(self, slots: int, queue: int, wait_s: float) -> None:
        self.slots, self.queue, self.wait_s = slots, queue, wait_s
        self.running = 0
        self.refused = 0
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = (deque(), deque(), deque())
        self._sessions_in_a_row = 0
        self._closed = False

    @property
    def queued(self) -> int:
        return sum(map(len, self._waiting))

    @property
    def is_closed(self) -> bool:
        return self._closed

    @asynccontextmanager
    async def slot(self, kind: int) -> AsyncIterator[None]:
        """Hold a slot; raises Overloaded if none becomes free in time."""
        if self._closed:
            raise Overloaded("the sandbox is stopping")
        if self.running < self.slots:  # so the queue is empty
            self.running += 1
        else:
            await self._wait(kind)
        try:
            yield
        finally:
            self._release_slot()

    async def _wait(self, kind: int) -> None:
        queue = self._waiting[kind]
        if kind != BATCH and len(self._waiting[SESSION]) + len(self._waiting[PROGRAM]) >= self.queue:
            self.refused += 1
            raise Overloaded(f"all {self.slots} slots are busy and {self.queue} requests wait already")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        queue.append(waiter)
        timer = None if kind == BATCH else loop.call_later(self.wait_s, self._on_timeout, queue, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in queue:
                queue.remove(waiter)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release_slot()  # it got the slot at the same time
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _on_timeout(self, queue: deque[asyncio.Future[None]], waiter: asyncio.Future[None]) -> None:
        if waiter in queue:
            queue.remove(waiter)
            self.refused += 1
            if not waiter.done():
                waiter.set_exception(Overloaded(f"all {self.slots} slots were busy for {self.wait_s:g} s"))

    def _release_slot(self) -> None:
        """Pass the slot to the next waiter, if there is one."""
        while (waiter := self._next()) is not None:
            if not waiter.done():  # else its task was cancelled and has not run since
                waiter.set_result(None)
                return
        self.running -= 1

    def _next(self) -> asyncio.Future[None] | None:
        sessions, programs, batches = self._waiting
        if sessions and (self._sessions_in_a_row < MAX_SESSIONS_IN_A_ROW or not (programs or batches)):
            self._sessions_in_a_row += 1
            return sessions.popleft()
        self._sessions_in_a_row = 0
        for queue in (programs, batches, sessions):
            if queue:
                return queue.popleft()
        return None

    def close(self) -> None:
        """Admit nothing more, and refuse the requests that wait."""
        self._closed = True
        for queue in self._waiting:
            for waiter in queue:
                if not waiter.done():
                    waiter.set_exception(Overloaded("the sandbox is stopping"))
            queue.clear()
