"""The services of a cycle: which instances it has, whether the gate is open, whose deadline is over. No I/O, no clock.

state       leaves on                                                to
starting    its probe succeeds                                       ready
starting    its process ends; its deadline passes                    failed
ready       its process ends, and it may be started again            restarting
ready       its process ends with 0, and need not be started again   ended
restarting  its probe succeeds                                       ready
restarting  its deadline passes; its restarts are used up            failed
(any)       its node is lost, replaced, or told to stop              (there is no such instance any more)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

ALL, HEAD, ANY = "all", "head", "any"


class ServiceState(str, Enum):
    """What one instance is doing, as the leader knows it."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    ENDED = "ended"
    FAILED = "failed"


SERVICE_MOVES: dict[ServiceState, frozenset[ServiceState]] = {
    ServiceState.STARTING: frozenset({ServiceState.READY, ServiceState.FAILED}),
    ServiceState.READY: frozenset({ServiceState.RESTARTING, ServiceState.ENDED, ServiceState.FAILED}),
    ServiceState.RESTARTING: frozenset({ServiceState.READY, ServiceState.FAILED}),
    ServiceState.ENDED: frozenset(),
    ServiceState.FAILED: frozenset(),
}
UNREADY = (ServiceState.STARTING, ServiceState.RESTARTING)
DONE = (ServiceState.READY, ServiceState.ENDED)  # nobody waits for one that was ready and ended well


@dataclass(frozen=True)
class ServicePlan:
    """One service, as far as the protocol is concerned."""

    name: str
    scope: str | int = ALL
    gate: bool = True  # the driver waits for it
    deadline: float = 300.0  # from an instance's start until it must be ready

    def wanted(self, nodes: int) -> int:
        """How many instances there are on so many active nodes."""
        if isinstance(self.scope, int):
            return min(self.scope, nodes)
        return nodes if self.scope == ALL else 1

    def runs_on(self, logical: int, nodes: int) -> bool:
        """Whether this rank has an instance. The last ones come first: the head has the driver to carry.

        >>> [ServicePlan("judge", 2).runs_on(rank, 4) for rank in range(4)]
        [False, False, True, True]
        """
        return logical == 0 if self.scope == HEAD else logical >= nodes - self.wanted(nodes)


@dataclass(frozen=True)
class PlannedInstance:
    """One service on one node."""

    service: str
    rank: int  # the node's number in the allocation
    logical: int
    state: ServiceState
    deadline: float  # when it must be ready
    words: str = ""  # why it is not ready, or how it ended


class Services:
    """Those of the present cycle, as its nodes come and go."""

    def __init__(self, plans: Sequence[ServicePlan], nodes: int) -> None:
        """`nodes` is how many are active in a cycle."""
        self.plans = {plan.name: plan for plan in plans}
        self.instances: dict[tuple[str, int], PlannedInstance] = {}
        self.changes: list[PlannedInstance] = []  # every one made, in order, for whoever publishes them
        self.version = 0  # grows with everything that changes, a vanished instance included
        self.failure: PlannedInstance | None = None
        self.ready: Counter[str] = Counter()  # how many there are of each
        self._nodes = nodes
        self._closed = sum(plan.wanted(nodes) for plan in plans if plan.gate)  # gated instances that hold the driver
        self._serving: dict[int, int] = {}  # ranks in the cycle of nodes that have their instances, or are about to
        self._fresh: list[int] = []
        self._waiting: dict[tuple[str, int], float] = {}  # deadlines of those that are not ready

    @property
    def open(self) -> bool:
        """Whether every gated service is ready wherever it is wanted, or was and ended well."""
        return self._closed == 0

    def node_is(self, rank: int, logical: int | None) -> None:
        """What a node's rank in the cycle is from now on; None when it has none, or is not there."""
        before = self._serving.get(rank)
        if logical == before:
            return
        if before is not None:
            del self._serving[rank]
            for name in self.plans:
                self._forget((name, rank))
        if logical is not None:
            self._serving[rank] = logical
            self._fresh.append(rank)

    def begin(self, now: float) -> list[tuple[int, tuple[str, ...]]]:
        """Nodes that have a rank since the last time, and what is to be started there."""
        fresh, self._fresh = self._fresh, []
        begun = []
        for rank in dict.fromkeys(rank for rank in fresh if rank in self._serving):
            logical = self._serving[rank]
            plans = [plan for plan in self.plans.values() if plan.runs_on(logical, self._nodes)]
            for plan in plans:
                self._put(PlannedInstance(plan.name, rank, logical, ServiceState.STARTING, now + plan.deadline))
            if plans:
                begun.append((rank, tuple(plan.name for plan in plans)))
        return begun

    def report(self, service: str, rank: int, state: ServiceState, words: str, now: float) -> PlannedInstance | None:
        """What a node says of its instance; returns it if it moved. Words alone are kept for when they are needed."""
        instance = self.instances.get((service, rank))
        if instance is None:
            return None
        if state in (instance.state, ServiceState.STARTING) and instance.state in UNREADY:
            self.instances[service, rank] = replace(instance, words=words)
            return None
        if state not in SERVICE_MOVES[instance.state]:
            return None
        moved = replace(instance, state=state, words=words, deadline=now + self.plans[service].deadline)
        self._put(moved)
        return moved

    def overdue(self, now: float) -> PlannedInstance | None:
        """The instance that should have been ready first, if there is one."""
        if not self._waiting:
            return None
        key = min(self._waiting, key=lambda key: (self._waiting[key], key))
        return self.instances[key] if self._waiting[key] <= now else None

    def of(self, service: str) -> list[PlannedInstance]:
        """By their rank in the cycle."""
        found = [instance for (name, _), instance in self.instances.items() if name == service]
        return sorted(found, key=lambda instance: instance.logical)

    def _put(self, instance: PlannedInstance) -> None:
        key = instance.service, instance.rank
        before = self.instances.get(key)
        self.instances[key] = instance
        self.changes.append(instance)
        self.version += 1
        self._count(instance.service, before, instance)
        if instance.state in UNREADY:
            self._waiting[key] = instance.deadline
        else:
            self._waiting.pop(key, None)

    def _forget(self, key: tuple[str, int]) -> None:
        instance = self.instances.pop(key, None)
        if instance is not None:
            self._waiting.pop(key, None)
            self.version += 1
            self._count(instance.service, instance, None)

    def _count(self, service: str, before: PlannedInstance | None, after: PlannedInstance | None) -> None:
        was, is_now = (one is not None and one.state is ServiceState.READY for one in (before, after))
        self.ready[service] += is_now - was
        if self.plans[service].gate:
            was, is_now = (one is not None and one.state in DONE for one in (before, after))
            self._closed += was - is_now
