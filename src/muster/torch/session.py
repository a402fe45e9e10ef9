"""One node's part in the rendezvous: its connection, in a thread of its own so that it lives whatever torchrun does.

The coordinator lives in the same thread of the process that bound the endpoint's port first. Nothing here imports
torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from muster.agent.control.channel import HANDSHAKE_TIMEOUT_S, HEARTBEAT_TIMEOUT_S, Channel, ChannelError, connect
from muster.lifecycle.events import RunOutcome
from muster.torch.coordinator import Coordinator, OpenStore
from muster.torch.endpoint import is_here, take_port
from muster.torch.settings import RendezvousSettings

RETRY_S = 0.3  # while the coordinator is not there yet
REFUSALS = 3  # in a row, of somebody who listens there: it is not our coordinator
LEAVE_S = 10.0  # for everybody to hear the outcome and go, before the coordinator does
T = TypeVar("T")


class SessionError(Exception):
    """The node cannot take part; the text says why."""


class Unreachable(SessionError):
    """No coordinator, or no longer."""


class Refused(SessionError):
    """The coordinator does not want this node."""


class JobOver(SessionError):
    """The job has ended."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(outcome.end_reason)
        self.outcome = outcome


@dataclass(frozen=True)
class Round:
    """What a node is told of a round that forms."""

    number: int
    rank: int
    size: int
    port: int  # of its store, at the endpoint's host


class NodeSession:
    """Its methods block, and are for torchrun's own thread."""

    def __init__(self, settings: RendezvousSettings, open_store: OpenStore) -> None:
        self._settings, self._open_store = settings, open_store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="muster-rendezvous", daemon=True)
        self._coordinator: Coordinator | None = None
        self._channel: Channel | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        # What the coordinator has said; written in the other thread.
        self._news = threading.Condition()
        self._forming = Round(0, 0, 0, 0)
        self._going = 0
        self._recalled = 0
        self._gone: SessionError | None = None  # why there will be no further word
        self.outcome: RunOutcome | None = None

    @property
    def is_over(self) -> bool:
        return self._gone is not None

    @property
    def is_called_back(self) -> bool:
        """Whether the round of this node is over, be it that the job is."""
        return self._recalled >= self._going or self.is_over

    def join(self, reach_store: Callable[[Round], T]) -> tuple[Round, T]:
        """Wait for a round in which this node has a rank, and all of it reach the store. A spare waits here."""
        last = self._going
        if self._channel is None:
            self._open()
        else:
            self._send("back")
        while True:
            round = self._next_round(last)
            last = round.number
            store = reach_store(round)
            self._send("ready", round=last)
            if self._runs(last):
                return round, store

    def leave(self, code: int, reason: str) -> None:
        """torchrun is over here: say how, and hear how the job ended; from the coordinator all others hear it first."""
        if self._channel is not None and self._gone is None:
            self._send("ended", code=code, reason=reason)
        self._close(None)

    def withdraw(self, reason: str) -> None:
        """This node goes, the job may go on."""
        if self._channel is not None and self._gone is None:
            self._send("leave", reason=reason)
        self._close(LEAVE_S)

    # -- this thread --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._channel = self._do(self._connect())
        self._loop.call_soon_threadsafe(self._keep, self._channel)

    def _close(self, seconds: float | None) -> None:
        """In this order: the outcome, everybody gone, the socket closed."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        try:
            if self._channel is not None:
                with self._news:
                    self._news.wait_for(lambda: self.is_over, seconds)
        finally:
            if self._coordinator is not None:
                self._do(self._coordinator.close(LEAVE_S))
            self._do(self._cancel())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _next_round(self, last: int) -> Round:
        return self._await(lambda: self._forming if self._forming.number > last else None)

    def _runs(self, number: int) -> bool:
        """Either it runs, or another one forms since somebody was lost meanwhile."""
        self._await(lambda: self._going == number or self._forming.number > number or None)
        return self._going == number

    def _await(self, look: Callable[[], T | None]) -> T:
        with self._news:
            self._news.wait_for(lambda: look() or self.is_over)
            found = look()
            if self._gone is not None:
                raise self._gone
            assert found is not None
            return found

    def _send(self, kind: str, **fields: Any) -> None:
        assert self._channel is not None
        channel = self._channel
        self._loop.call_soon_threadsafe(lambda: channel.send(kind, **fields))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- the other thread ---------------------------------------------------------------------------------------

    async def _connect(self) -> Channel:
        settings = self._settings
        host, port, home = settings.host, settings.port, ""
        listener = None
        if settings.is_host if settings.is_host is not None else is_here(host):
            listener = take_port(host, port)
        if listener is not None:
            bound, port = listener.getsockname()[:2]
            host, home = "localhost" if bound in ("::", "0.0.0.0") else bound, secrets.token_hex(8)
            self._coordinator = Coordinator(settings.plan, settings.token, home, self._open_store)
            await self._coordinator.start(listener)
        plan = settings.plan
        greeting = {
            "host": settings.node,
            "number": settings.number,
            "home": home,
            "plan": [plan.least, plan.most, plan.spares],
        }
        return await _reach(host, port, settings, greeting)

    def _keep(self, channel: Channel) -> None:
        for work in (self._hear(channel), channel.beat()):
            task = asyncio.ensure_future(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hear(self, channel: Channel) -> None:
        while self._gone is None:
            message = await channel.receive()
            with self._news:
                self._take(message, channel)
                self._news.notify_all()
        channel.close()

    def _take(self, message: dict[str, Any] | None, channel: Channel) -> None:
        if message is None:
            where = f"{self._settings.host}:{self._settings.port}"
            how = (
                f"has been silent for {HEARTBEAT_TIMEOUT_S:g} s"
                if channel.timed_out
                else "is gone: its connection ended"
            )
            self._gone = Unreachable(f"the coordinator at {where} {how}")
            return
        kind = message.pop("type")
        if kind == "form":
            self._forming = Round(message["round"], message["rank"], message["size"], message["port"])
        elif kind == "go":
            self._going = message["round"]
        elif kind == "again":
            self._recalled = message["round"]
        elif kind == "refused":
            self._gone = Refused(message["why"])
        elif kind == "outcome":
            self.outcome = RunOutcome(**message)
            self._gone = JobOver(self.outcome)

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()


async def _reach(host: str, port: int, settings: RendezvousSettings, greeting: dict[str, Any]) -> Channel:
    """The coordinator may come up later than we do. Somebody else on its port will not become it."""
    ends, refusals = time.monotonic() + settings.plan.gather_timeout, 0
    while True:
        began = time.monotonic()
        try:
            return await connect([host], port, settings.token, greeting)
        except ChannelError as error:
            quick = time.monotonic() - began < HANDSHAKE_TIMEOUT_S
            refusals = refusals + 1 if quick and await _somebody_listens(host, port) else 0
            if refusals >= REFUSALS:
                what = "something listens there that is not this job's coordinator: another --rdzv-id or token?"
                raise Unreachable(f"{host}:{port}: {what}") from error
            if time.monotonic() >= ends:
                raise Unreachable(f"no coordinator within {settings.plan.gather_timeout:g} s: {error}") from error
        await asyncio.sleep(RETRY_S)


async def _somebody_listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), HANDSHAKE_TIMEOUT_S)
        writer.close()
        return True
    return False
