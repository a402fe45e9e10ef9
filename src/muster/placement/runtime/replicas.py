"""`Replicas`: so many of one model, each of which answers; the thing a user holds.

    with Replicas("chat", Model("llama", replicas=3, tp=4), command=["serve", "--port", "{port}"]) as chat:
        chat.endpoints()

In asynchronous code `async with` does the same without blocking the loop; `scale` and the like go through
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

from muster.placement.errors import PlacementError, SubprocessError
from muster.placement.planning.planner import TOTAL, Outcome, PlacedReplica, plan
from muster.placement.planning.request import Model
from muster.placement.runtime.health import READY
from muster.placement.runtime.lease import NameLease
from muster.placement.runtime.managed import ManagedSubprocess
from muster.placement.runtime.names import Name, checked_server
from muster.placement.runtime.nodes import discover_nodes
from muster.placement.runtime.orphans import sweep_server
from muster.placement.runtime.replica import FAILED, Event, Replica, ReplicaProgram
from muster.placement.runtime.scheduler import WAIT_S, place, place_again

LOG = logging.getLogger("muster.placement")
LOOK_S = 0.5  # how often it is checked whether somebody wants a start to end


@dataclass(frozen=True)
class Endpoint:
    """Where a ready replica answers."""

    replica: int
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class ReplicaStatus:
    """What is known of one replica."""

    replica: int
    state: str
    nodes: tuple[str, ...]
    endpoint: Endpoint | None
    restarts: int
    pids: tuple[int, ...]
    error: str = ""


class Replicas:
    """Replicas of one model under one server's name; see docs/placement.md for the arguments of Program."""

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
        self.server = checked_server(server)
        self.model = model
        self.program = ReplicaProgram(**program)
        if (self.program.command is None) == (self.program.python_args is None):
            raise ValueError("Replicas needs exactly one of 'command' and 'python_args'")
        self.events: list[Event] = []
        self._takeover, self._wait_s = takeover, wait_s
        self._on_event, self._on_progress = on_event, on_progress
        self._lease: NameLease | None = None
        self._replicas: list[Replica] = []
        self._news = threading.Condition()
        self._changing = threading.Lock()  # one start, scale or stop at a time
        self._stop_asked = threading.Event()

    # -- beginning and end ------------------------------------------------------------------------------------------

    def start(self) -> Replicas:
        """Returns when every replica answers its probe. When one fails, all are taken back and its error is raised."""
        with self._changing:
            if self._lease is not None:
                raise RuntimeError(f"server {self.server!r} has been started already")
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
        """Everything ends: programs (all at once), actors, groups, the lease."""
        self._stop_asked.set()  # a start or scale that is under way gives up
        with self._changing:
            self._stop()
            self._stop_asked.clear()

    def _stop(self) -> None:
        self._take_back(self._replicas)
        self._replicas = []
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def scale(self, replicas: int) -> None:
        """To so many. More: as at the start, and those that were there stay in any case. Fewer: the last ones go."""
        if replicas < 1:
            raise ValueError(f"replicas must be at least 1, not {replicas}; stop() ends all")
        with self._changing:
            if self._lease is None:
                raise RuntimeError(f"server {self.server!r} has not been started")
            extra = replicas - len(self._replicas)
            if extra > 0:
                self._add(extra)
            elif extra < 0:
                self._take_back(self._replicas[replicas:])
                del self._replicas[replicas:]

    def disconnect(self) -> None:
        """Before ray.shutdown(), of detached replicas: they go on, and nobody looks after them."""
        with self._changing:
            if not self.program.detached:
                raise RuntimeError(f"server {self.server!r} is not detached: it would end with this connection")
            for each in self._replicas:
                each.request_stop()
            for each in self._replicas:
                each.detach()

    def reconnect(self) -> None:
        """After the next ray.init(): they are looked after again."""
        with self._changing:
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
            await asyncio.to_thread(self.stop)  # makes the start give up
            await asyncio.wait([starting])
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    # -- looking ----------------------------------------------------------------------------------------------------

    def endpoints(self) -> list[Endpoint]:
        """Of the replicas that are ready now."""
        return [status.endpoint for status in self.status() if status.endpoint is not None]

    def status(self) -> list[ReplicaStatus]:
        return [_status(each) for each in self._replicas]

    # -- more and fewer ---------------------------------------------------------------------------------------------

    def _add(self, count: int) -> None:
        """So many more, ready; or none of them and the error of the first that failed."""
        assert self._lease is not None
        lease, first = self._lease, len(self._replicas)

        # Those that are here will stay: to wait for room that only they could make would be to wait for ever.
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
            given_up=self._stop_asked.is_set,
        )
        added = [
            Replica(self.program, lease, first + number, where, group, self._tell, self._place_again)
            for number, (where, group) in enumerate(placed)
        ]
        self._replicas += added
        try:
            for each in added:
                each.begin()
            self._await_ready(added)
        except BaseException:
            self._replicas = self._replicas[:first]
            self._take_back(added)
            raise

    def _await_ready(self, added: list[Replica]) -> None:
        with self._news:
            while not all(each.state == READY for each in added):
                for each in added:
                    if each.state == FAILED and each.error is not None:
                        raise each.error
                if self._stop_asked.is_set():
                    raise SubprocessError(f"server {self.server!r} was stopped before it was ready")
                self._news.wait(timeout=LOOK_S)

    def _take_back(self, replicas: list[Replica]) -> None:
        parts = [part for each in replicas for part in each.request_stop()]
        ManagedSubprocess.stop_many(parts, timeout_s=self.program.grace)
        for each in replicas:
            each.finish()

    def _place_again(self, lost: Replica) -> tuple[PlacedReplica, PlacementGroup]:
        """Another place for a replica whose node is gone."""
        return place_again(
            self.model,
            str(Name(self.server, lost.lease.term, lost.number)),
            wait_s=self._wait_s,
            detached=self.program.detached,
            progress=self._on_progress,
            given_up=lambda: lost.stop_requested,
        )

    def _tell(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:  # the caller's own; the replica is looked after all the same
            LOG.exception("on_event failed for: %s", event)
        with self._news:
            self.events.append(event)
            self._news.notify_all()


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
