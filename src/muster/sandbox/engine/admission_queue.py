"""Admission control: a fixed number of slots, and behind them a bounded queue in three classes, fair between clients.

class       waits                        served
SESSION     at most wait_s               first, but at most MAX_SESSIONS_IN_A_ROW times past a waiting program or batch
PROGRAM     at most wait_s               one client after the other; those of one client in order of arrival
BATCH       without a limit              when no other class waits (its caller reads results as they arrive)

A full queue is shared equally: a client with more than its share is refused (ClientOverloaded), or loses its newest
request to a client with less. Long programs cannot starve short ones: if no slot becomes free for EXPRESS_WAIT_S,
waiting programs whose timeout is at most EXPRESS_TIMEOUT_S get an express slot. There is one for every four slots.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

SESSION, PROGRAM, BATCH = 0, 1, 2
MAX_SESSIONS_IN_A_ROW = 4
EXPRESS_TIMEOUT_S = 10.0
EXPRESS_WAIT_S = 0.5
SLOTS_PER_EXPRESS_SLOT = 4
RETRY_AFTER_MAX_S = 30
RECENT_WEIGHT = 0.1  # of the last program in the average time of a slot


class Overloaded(Exception):
    """The request was refused before anything ran; it may be sent again."""

    status = 503


class ClientOverloaded(Overloaded):
    """The same, since its client has more requests waiting than others."""

    status = 429


@dataclass(eq=False)
class QueuedRequest:
    """A request that waits; its future's result is whether it got an express slot."""

    client: str
    future: asyncio.Future[bool]
    since: float
    is_short: bool


class ClientQueue:
    """Requests by client; `pop` takes one of each client in turn."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[QueuedRequest]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[QueuedRequest]:
        return (one for waiting in self._waiting.values() for one in waiting)

    def __contains__(self, request: QueuedRequest) -> bool:
        return request in self._waiting.get(request.client, ())

    def counts(self) -> dict[str, int]:
        return {client: len(waiting) for client, waiting in self._waiting.items()}

    def append(self, request: QueuedRequest) -> None:
        self._waiting.setdefault(request.client, deque()).append(request)

    def remove(self, request: QueuedRequest) -> None:
        waiting = self._waiting[request.client]
        waiting.remove(request)
        if not waiting:
            del self._waiting[request.client]

    def pop(self) -> QueuedRequest:
        client = next(iter(self._waiting))
        waiting = self._waiting.pop(client)
        request = waiting.popleft()
        if waiting:
            self._waiting[client] = waiting  # behind the other clients
        return request

    def newest(self, client: str) -> QueuedRequest | None:
        return self._waiting[client][-1] if client in self._waiting else None

    def clear(self) -> None:
        self._waiting.clear()


class Admission:
    """The slots and the requests that wait for one."""

    def __init__(self, slots: int, queue: int, wait_s: float) -> None:
        self.slots, self.queue, self.wait_s = slots, queue, wait_s
        self.running = 0
        self.refused = 0
        self.express = 0  # express slots in use
        self._waiting = (ClientQueue(), ClientQueue(), ClientQueue())
        self._sessions_in_a_row = 0
        self._released = -math.inf  # when a slot last became free
        self._average_s = 0.0  # for which a slot is held
        self._closed = False

    @property
    def queued(self) -> int:
        return sum(map(len, self._waiting))

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def retry_after_s(self) -> int:
        """The whole seconds after which a refused request has a chance, from the queue and recent run times."""
        expected = self._average_s * (self.queued + 1) / self.slots
        return max(1, min(RETRY_AFTER_MAX_S, math.ceil(expected)))

    @asynccontextmanager
    async def slot(self, kind: int, client: str = "", timeout: float = math.inf) -> AsyncIterator[None]:
        """Hold a slot for a program with this timeout; raises Overloaded if none becomes free in time."""
        if self._closed:
            raise Overloaded("the sandbox is stopping")
        is_express = False
        if self.running < self.slots:  # so the queue is empty
            self.running += 1
        else:
            is_express = await self._wait(kind, client, timeout <= EXPRESS_TIMEOUT_S)
        started = self._now()
        try:
            yield
        finally:
            self._average_s += RECENT_WEIGHT * (self._now() - started - self._average_s)
            if is_express:
                self.express -= 1
                self._fill_express_slots()
            else:
                self._release_slot()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _wait(self, kind: int, client: str, is_short: bool) -> bool:
        """Wait for a slot; return whether it is an express slot."""
        queue = self._waiting[kind]
        if kind != BATCH:
            self._make_room(client)
        loop = asyncio.get_running_loop()
        request = QueuedRequest(client, loop.create_future(), loop.time(), is_short)
        queue.append(request)
        timers = [] if kind == BATCH else [loop.call_later(self.wait_s, self._on_timeout, queue, request)]
        if is_short and kind != BATCH:
            timers.append(loop.call_later(EXPRESS_WAIT_S, self._fill_express_slots))
        try:
            return await request.future
        except asyncio.CancelledError:
            if request in queue:
                queue.remove(request)
            elif request.future.done() and not request.future.cancelled() and request.future.exception() is None:
                self._return(request.future.result())  # it got the slot at the same time
            raise
        finally:
            for timer in timers:
                timer.cancel()

    def _return(self, is_express: bool) -> None:
        if is_express:
            self.express -= 1
            self._fill_express_slots()
        else:
            self._release_slot()

    def _make_room(self, client: str) -> None:
        """Raise Overloaded if the queue is full and this client has its share of it; else let another one yield."""
        counts: dict[str, int] = {}
        for queue in self._waiting[:BATCH]:
            for other, count in queue.counts().items():
                counts[other] = counts.get(other, 0) + count
        if sum(counts.values()) < self.queue:
            return
        self.refused += 1
        message = f"all {self.slots} slots are busy and {self.queue} requests wait already"
        if not set(counts) - {client}:
            raise Overloaded(message)
        largest = max(counts, key=lambda other: counts[other])
        if counts.get(client, 0) + 1 >= counts[largest]:
            raise ClientOverloaded(f"{message}, {counts.get(client, 0)} of them of this client")
        for queue in reversed(self._waiting[:BATCH]):  # programs before cells of sessions
            if (newest := queue.newest(largest)) is not None:
                queue.remove(newest)
                if not newest.future.done():
                    newest.future.set_exception(ClientOverloaded(f"{message}, and other clients have fewer"))
                return

    def _on_timeout(self, queue: ClientQueue, request: QueuedRequest) -> None:
        if request in queue:
            queue.remove(request)
            self.refused += 1
            if not request.future.done():
                request.future.set_exception(Overloaded(f"all {self.slots} slots were busy for {self.wait_s:g} s"))

    def _release_slot(self) -> None:
        """Pass the slot to the next waiter, if there is one."""
        self._released = self._now()
        while (request := self._next()) is not None:
            if not request.future.done():  # else its task was cancelled and has not run since
                request.future.set_result(False)
                return
        self.running -= 1

    def _fill_express_slots(self) -> None:
        """Give express slots to short programs that have waited, if no slot has become free meanwhile."""
        oldest = self._now() - EXPRESS_WAIT_S + 0.001  # a timer may fire a little early
        most = self.slots // SLOTS_PER_EXPRESS_SLOT
        if self._released > oldest or self.express >= most:
            return
        for queue in self._waiting[:BATCH]:
            for request in [one for one in queue if one.is_short and one.since <= oldest]:
                queue.remove(request)
                if not request.future.done():
                    self.express += 1
                    request.future.set_result(True)
                if self.express >= most:
                    return

    def _next(self) -> QueuedRequest | None:
        sessions, programs, batches = self._waiting
        if sessions and (self._sessions_in_a_row < MAX_SESSIONS_IN_A_ROW or not (programs or batches)):
            self._sessions_in_a_row += 1
            return sessions.pop()
        self._sessions_in_a_row = 0
        for queue in (programs, batches, sessions):
            if queue:
                return queue.pop()
        return None

    def close(self) -> None:
        """Admit nothing more, and refuse the requests that wait."""
        self._closed = True
        for queue in self._waiting:
            for request in queue:
                if not request.future.done():
                    request.future.set_exception(Overloaded("the sandbox is stopping"))
            queue.clear()
