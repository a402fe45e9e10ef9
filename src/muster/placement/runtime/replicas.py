"""`Replicas`: the replicas of one model, each with a serving program; the user's handle.

    with Replicas("chat", Model("llama", replicas=3, tp=4), command=["serve", "--port", "{port}"]) as chat:
        chat.endpoints()

In asynchronous code `async with` does the same without blocking the loop; call `scale` and the others with
`asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from ray.util.placement_group import PlacementGroup

from muster.placement.errors import OwnedElsewhere, PlacementError, SubprocessError
from muster.placement.planning.planner import TOTAL, Outcome, PlacedReplica, plan
from muster.placement.planning.request import Model
from muster.placement.runtime.endpoint import ADD_TIMEOUT_S, EndpointPublisher
from muster.placement.runtime.health import READY, STARTING
from muster.placement.runtime.lease import NameLease
from muster.placement.runtime.managed import ManagedSubprocess
from muster.placement.runtime.names import Name, validate_server
from muster.placement.runtime.nodes import discover_nodes
from muster.placement.runtime.orphans import sweep_server
from muster.placement.runtime.replica import FAILED, STOPPED, Event, Replica, ReplicaProgram
from muster.placement.runtime.scheduler import WAIT_S, place, place_again

LOG = logging.getLogger("muster.placement")
STOP_REQUEST_POLL_S = 0.5  # while replicas start


@dataclass(frozen=True)
class Endpoint:
    """The address of a ready replica."""

    replica: int
    host: str
    port: int

    @property
    def url(self) -> str:
        """Return the address as a URL."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class ReplicaStatus:
    """The status of one replica."""

    replica: int
    state: str
    nodes: tuple[str, ...]
    endpoint: Endpoint | None
    restarts: int
    pids: tuple[int, ...]
    error: str = ""


class Replicas:
    """Replicas of one model under one server's name; docs/reference/placement.md has ReplicaProgram's arguments."""

    def __init__(
        self,
        server: str,
        model: Model,
        *,
        takeover: bool = False,
        wait_s: float = WAIT_S,
        on_event: Callable[[Event], None] = lambda event: None,
        on_progress: Callable[[str], None] = lambda line: None,
        **program: Any,
    ) -> None:
        self.server = validate_server(server)
        self.model = model
        self.program = ReplicaProgram(**program)
        if (self.program.command is None) == (self.program.python_args is None):
            raise ValueError("Replicas needs exactly one of 'command' and 'python_args'")
        self.events: list[Event] = []
        self._takeover, self._wait_s = takeover, wait_s
        self._on_event, self._on_progress = on_event, on_progress
        self._lease: NameLease | None = None
        self._replicas: list[Replica] = []
        self._changed = threading.Condition()
        self._lock = threading.Lock()  # one start, scale or stop at a time
        self._stop_requested = threading.Event()
        self._publisher: EndpointPublisher | None = None
        self._leaving: set[Replica] = set()  # they get no more requests

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> Replicas:
        """Start all replicas and wait until they are ready. If one fails, all are stopped and its error is raised."""
        with self._lock:
            if self._lease is not None:
                raise RuntimeError(f"server {self.server!r} has been started already")
            if self.program.endpoint is not None:
                self._publisher = EndpointPublisher(self.program.endpoint)
            lease = NameLease.acquire(self.server, takeover=self._takeover)
            self._lease = lease
            try:
                sweep_server(self.server, before_term=lease.term)
                self._add(self.model.replicas)
            except BaseException:
                self._stop()
                raise
        return self

    def stop(self) -> None:
        """Stop all programs in parallel, then remove actors and groups, and release the name."""
        self._stop_requested.set()  # a concurrent start or scale is aborted
        with self._lock:
            self._stop()
            self._stop_requested.clear()

    def _stop(self) -> None:
        self._stop_replicas(self._replicas, min(self.program.drain, self.program.grace))  # the driver may be ending
        self._replicas = []
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def scale(self, replicas: int) -> None:
        """Change the number of replicas: add some as `start` does, keeping the present ones, or remove the last."""
        if replicas < 1:
            raise ValueError(f"replicas must be at least 1, not {replicas}; stop() ends all")
        with self._lock:
            if self._lease is None:
                raise RuntimeError(f"server {self.server!r} has not been started")
            extra = replicas - len(self._replicas)
            if extra > 0:
                self._add(extra)
            elif extra < 0:
                self._stop_replicas(self._replicas[replicas:], self.program.drain)
                del self._replicas[replicas:]

    def disconnect(self) -> None:
        """End the supervision of detached replicas, before ray.shutdown(); their programs continue."""
        with self._lock:
            if not self.program.detached:
                raise RuntimeError(f"server {self.server!r} is not detached: it would end with this connection")
            for each in self._replicas:
                each.request_stop()
            for each in self._replicas:
                each.detach()

    def reconnect(self) -> None:
        """Supervise the replicas again, after the next ray.init()."""
        with self._lock:
            for each in self._replicas:
                each.attach()

    def __enter__(self) -> Replicas:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Replicas:
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.stop)  # aborts the start
            await asyncio.wait([starting])
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # -- status -----------------------------------------------------------------------------------------------------

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints of the replicas that are ready."""
        return [status.endpoint for status in self.status() if status.endpoint is not None]

    def status(self) -> list[ReplicaStatus]:
        """Return the status of each replica."""
        return [_status(each) for each in self._replicas]

    # -- scaling ----------------------------------------------------------------------------------------------------

    def _add(self, count: int) -> None:
        """Add `count` replicas and wait until they are ready; if one fails, remove them and raise its error."""
        assert self._lease is not None
        lease, first = self._lease, len(self._replicas)

        # The present replicas stay: waiting for room that only they could free would never end.
        whole = plan(discover_nodes(), [replace(self.model, replicas=first + count)], against=TOTAL)
        if whole.outcome is Outcome.INFEASIBLE:
            raise PlacementError(whole.explain())

        def name_of(placed: PlacedReplica) -> str:
            return str(Name(self.server, lease.term, first + placed.replica))

        placed = place(
            [replace(self.model, replicas=count)],
            name_of,
            wait_s=self._wait_s,
            detached=self.program.detached,
            progress=self._on_progress,
            is_cancelled=self._stop_requested.is_set,
        )
        added = [
            Replica(self.program, lease, first + number, where, group, self._on_replica_event, self._place_again)
            for number, (where, group) in enumerate(placed)
        ]
        self._replicas += added
        try:
            for each in added:
                each.begin()
            self._wait_until_ready(added)
            if self._publisher is not None:
                self._publisher.wait_until_served(self._publish(self._publisher), ADD_TIMEOUT_S)
        except BaseException:
            self._replicas = self._replicas[:first]
            self._stop_replicas(added, self.program.drain)
            raise

    def _wait_until_ready(self, added: list[Replica]) -> None:
        with self._changed:
            while not all(each.state == READY for each in added):
                for each in added:
                    if each.state == FAILED and each.error is not None:
                        raise each.error
                    if each.state == STOPPED:  # by its own supervision, which has seen a later term
                        raise OwnedElsewhere(f"another process claimed server {self.server!r} before it was ready")
                if self._stop_requested.is_set():
                    raise SubprocessError(f"server {self.server!r} was stopped before it was ready")
                self._changed.wait(timeout=STOP_REQUEST_POLL_S)

    def _publish(self, publisher: EndpointPublisher) -> int:
        """Publish the replicas that are ready and not about to be stopped; return the version of the list."""
        ready = [_status(each).endpoint for each in self._replicas if each not in self._leaving]
        return publisher.publish(endpoint.url for endpoint in ready if endpoint is not None)

    def _drain(self, publisher: EndpointPublisher, replicas: list[Replica], drain_s: float) -> None:
        """Take replicas out of their endpoint; return when their requests have ended, or after the time for that."""
        self._leaving.update(replicas)
        try:
            publisher.wait_until_served(self._publish(publisher), drain_s)
        except OSError as error:
            LOG.warning("server %s: its endpoint could not be changed: %s", self.server, error)

    def _stop_replicas(self, replicas: list[Replica], drain_s: float) -> None:
        if self._publisher is not None and replicas:
            self._drain(self._publisher, replicas, drain_s)
        parts = [part for each in replicas for part in each.request_stop()]
        ManagedSubprocess.stop_many(parts, timeout_s=self.program.grace)
        for each in replicas:
            each.finish()
        self._leaving.difference_update(replicas)

    def _place_again(self, lost: Replica) -> tuple[PlacedReplica, PlacementGroup]:
        """Build a group for a replica whose node is gone."""
        return place_again(
            self.model,
            str(Name(self.server, lost.lease.term, lost.number)),
            wait_s=self._wait_s,
            detached=self.program.detached,
            progress=self._on_progress,
            is_cancelled=lambda: lost.stop_requested,
        )

    def _on_replica_event(self, event: Event) -> None:
        try:
            if event.state == STARTING and event.detail:  # it waits: the caller would see nothing for long
                LOG.warning("server %s: %s", self.server, event)
                self._on_progress(str(event))
            if self._publisher is not None:
                self._publish(self._publisher)
            self._on_event(event)
        except Exception:  # of the caller's callback; the supervision continues
            LOG.exception("on_event failed for: %s", event)
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


def _status(replica: Replica) -> ReplicaStatus:
    where = replica.endpoint
    return ReplicaStatus(
        replica.number,
        replica.state,
        replica.placed.nodes,
        None if where is None else Endpoint(replica.number, *where),
        replica.budget.restarts,
        tuple(part.facts["pid"] for part in replica.parts),
        "" if replica.error is None else str(replica.error),
    )
