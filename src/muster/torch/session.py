"""The rendezvous session of one node: its connection, in a separate thread so that heartbeats continue under torchrun.

The process that bound the endpoint's port first also runs the coordinator in this thread. This module does not import
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
from enum import Enum
from typing import Any, TypeVar

from muster.agent.control.channel import (
    HANDSHAKE_TIMEOUT_S,
    HEARTBEAT_TIMEOUT_S,
    Channel,
    ChannelError,
    ProtocolMismatch,
    connect,
)
from muster.agent.control.codec import Message
from muster.agent.event_loop import RunningLoop
from muster.lifecycle.events import RunOutcome
from muster.torch.coordinator import CLOSE_TIMEOUT_S, Coordinator, OpenStore
from muster.torch.endpoint import bind_endpoint, is_local
from muster.torch.messages import (
    RENDEZVOUS_PROTOCOL,
    BackAtBarrier,
    JobOutcome,
    JoinRefused,
    JoinRequest,
    KeepAlive,
    LeaveJob,
    RoundForms,
    RoundReady,
    RoundRecalled,
    RoundRuns,
    TorchrunEnded,
)
from muster.torch.settings import RendezvousSettings

CONNECT_RETRY_S = 0.3  # while the coordinator is not reachable yet
MAX_REJECTIONS = 3  # consecutive rejections by a listening process: it is not our coordinator
T = TypeVar("T")


class SessionError(Exception):
    """The node cannot take part, for the reason in the text."""


class Unreachable(SessionError):
    """The coordinator cannot be reached, or is lost."""


class Refused(SessionError):
    """The coordinator refused this node."""


class JobOver(SessionError):
    """The job has ended."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(outcome.end_reason)
        self.outcome = outcome


@dataclass(frozen=True)
class Round:
    """A forming round, as sent to a node."""

    number: int
    rank: int
    size: int
    port: int  # of its store
    host: str = ""  # of its store; empty: the endpoint's


NO_ROUND = Round(0, 0, 0, 0)


class _Start(Enum):
    """What became of a forming round."""

    RUNS = "runs"
    NEVER = "never"


class NodeSession:
    """The session of one node. Its public methods block; torchrun's thread calls them."""

    def __init__(self, settings: RendezvousSettings, open_store: OpenStore) -> None:
        self._settings, self._open_store = settings, open_store
        self._loop = RunningLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="muster-rendezvous", daemon=True)
        self._coordinator: Coordinator | None = None
        self._channel: Channel | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        # The messages of the coordinator; written in the session's thread.
        self._changed = threading.Condition()
        self._forming = NO_ROUND
        self._running = 0
        self._recalled = 0
        self._closed: SessionError | None = None  # why there will be no further message
        self.outcome: RunOutcome | None = None

    @property
    def is_over(self) -> bool:
        return self._closed is not None

    @property
    def is_recalled(self) -> bool:
        """Whether the round of this node, or the job, is over."""
        return self._recalled >= self._running or self.is_over

    def join(self, connect_store: Callable[[Round], T]) -> tuple[Round, T]:
        """Wait until a round runs in which this node has a rank; return it and its store. A spare waits here."""
        last = self._forming
        self._arrive()
        while True:
            last = round = self._next_round(last)
            try:
                store = connect_store(round)
            except Exception:
                if self._is_over_for(round):
                    continue
                raise
            self._send(RoundReady(round.number))
            if self._wait_until_running(round):
                return round, store

    def leave(self, code: int, reason: str) -> None:
        """Report the end of torchrun on this node and wait for the outcome; a coordinator waits for all other nodes."""
        if self._channel is not None and self._closed is None:
            self._send(TorchrunEnded(code, reason))
        self._close(None)

    def withdraw(self, reason: str) -> None:
        """Leave; the job may continue."""
        if self._channel is not None and self._closed is None:
            self._send(LeaveJob(reason))
        self._close(CLOSE_TIMEOUT_S)

    # -- in torchrun's thread -----------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Report that this node is at the barrier; the first time by connecting."""
        if self._channel is None:
            self._open()
        else:
            self._send(BackAtBarrier())

    def _open(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._channel = self._run_in_loop(self._open_channel())
        self._loop.call_soon_threadsafe(self._start_tasks, self._channel)

    def _close(self, seconds: float | None) -> None:
        """Wait for the outcome, then for all nodes to disconnect from a coordinator here, then close the socket."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        try:
            if self._is_open:
                with self._changed:
                    self._changed.wait_for(lambda: self.is_over, seconds)
        finally:
            if self._coordinator is not None:
                self._run_in_loop(self._coordinator.close(CLOSE_TIMEOUT_S))
            self._run_in_loop(self._cancel())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def _is_open(self) -> bool:
        """Whether this node has tried to join."""
        return self._channel is not None

    def _next_round(self, last: Round) -> Round:
        return self._wait_for(lambda: self._forming if self._forming is not last and self._forming.number else None)

    def _wait_until_running(self, round: Round) -> bool:
        """Wait for the round to run; return False if another one forms because a node was lost."""
        return self._wait_for(lambda: self._start_of(round)) is _Start.RUNS

    def _start_of(self, round: Round) -> _Start | None:
        if self._forming is not round:
            return _Start.NEVER
        return _Start.RUNS if self._running == round.number else None

    def _is_over_for(self, round: Round) -> bool:
        """Return whether this round, whose store cannot be reached, will not run."""
        return self._forming is not round

    def _wait_for(self, find: Callable[[], T | None]) -> T:
        with self._changed:
            self._changed.wait_for(lambda: find() or self.is_over)
            found = find()
            if self._closed is not None:
                raise self._closed
            assert found is not None
            return found

    def _send(self, message: Message) -> None:
        assert self._channel is not None
        channel = self._channel
        self._loop.call_soon_threadsafe(channel.send, message)

    def _run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- in the session's thread --------------------------------------------------------------------------------

    async def _open_channel(self) -> Channel:
        settings = self._settings
        host, port, process_id = settings.host, settings.port, ""
        listener = None
        if settings.is_host if settings.is_host is not None else is_local(host):
            listener = bind_endpoint(host, port)
        if listener is not None:
            bound, port = listener.getsockname()[:2]
            host, process_id = "localhost" if bound in ("::", "0.0.0.0") else bound, secrets.token_hex(8)
            self._coordinator = Coordinator(settings.config, settings.token, process_id, self._open_store)
            await self._coordinator.start(listener)
        config = settings.config
        request = JoinRequest(
            settings.node, settings.node_index, process_id, config.min_nodes, config.max_nodes, config.spares
        )
        return await _connect(host, port, settings, request)

    def _start_tasks(self, channel: Channel) -> None:
        for work in (self._read_loop(channel), channel.keep_alive(KeepAlive())):
            self._background(work)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_loop(self, channel: Channel) -> None:
        while self._closed is None:
            message = await channel.receive()
            with self._changed:
                self._on_message(message, channel)
                self._changed.notify_all()
        channel.close()

    def _on_message(self, message: Message | None, channel: Channel) -> None:
        if message is None:
            where = f"{self._settings.host}:{self._settings.port}"
            self._closed = Unreachable(f"the coordinator at {where} {coordinator_loss(channel)}")
            return
        if isinstance(message, RoundForms):
            host = self._store_host(channel)
            self._forming = Round(message.round, message.rank, message.size, message.port, host)
        elif isinstance(message, RoundRuns):
            self._running = message.round
        elif isinstance(message, RoundRecalled):
            self._recalled = message.round
        elif isinstance(message, JoinRefused):
            self._closed = Refused(message.reason)
        elif isinstance(message, JobOutcome):
            self.outcome = message.outcome
            self._closed = JobOver(self.outcome)

    def _store_host(self, channel: Channel) -> str:
        """Return the host of the round's store; empty for the endpoint's."""
        return ""

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()


def coordinator_loss(channel: Channel) -> str:
    """Return how the coordinator of a lost connection was lost."""
    return f"sent no heartbeat for {HEARTBEAT_TIMEOUT_S:g} s" if channel.timed_out else channel.loss_reason


async def _connect(host: str, port: int, settings: RendezvousSettings, request: JoinRequest) -> Channel:
    """Connect, with retries: the coordinator may start later. Give up if another service listens on its port."""
    deadline, rejections = time.monotonic() + settings.config.gather_timeout, 0
    while True:
        began = time.monotonic()
        try:
            return await connect([host], port, settings.token, RENDEZVOUS_PROTOCOL, request)
        except ProtocolMismatch as error:
            raise Refused(str(error)) from error
        except ChannelError as error:
            quick = time.monotonic() - began < HANDSHAKE_TIMEOUT_S
            rejections = rejections + 1 if quick and await _port_open(host, port) else 0
            if rejections >= MAX_REJECTIONS:
                what = "the process that listens there is not this job's coordinator; check --rdzv-id and the token"
                raise Unreachable(f"{host}:{port}: {what}") from error
            if time.monotonic() >= deadline:
                raise Unreachable(f"no coordinator within {settings.config.gather_timeout:g} s: {error}") from error
        await asyncio.sleep(CONNECT_RETRY_S)


async def _port_open(host: str, port: int) -> bool:
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), HANDSHAKE_TIMEOUT_S)
        writer.close()
        return True
    return False
