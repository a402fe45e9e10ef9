"""The services of a cycle: their instances, the gate that holds the driver, and deadlines. No I/O, no clock.

state       leaves on                                                to
starting    its probe succeeds                                       ready
starting    its process ends; its deadline passes                    failed
ready       its process ends, and it may be restarted                restarting
ready       its process exits with 0 and is not to be restarted      ended
restarting  its probe succeeds                                       ready
restarting  its deadline passes; it has no restarts left             failed
(any)       its node is lost, replaced or stopped                    (the instance is removed)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

ALL, HEAD, ANY = "all", "head", "any"


class ServiceState(str, Enum):
    """The state of one instance, as known to the leader."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    ENDED = "ended"
    FAILED = "failed"


SERVICE_TRANSITIONS: dict[ServiceState, frozenset[ServiceState]] = {
    ServiceState.STARTING: frozenset({ServiceState.READY, ServiceState.FAILED}),
    ServiceState.READY: frozenset({ServiceState.RESTARTING, ServiceState.ENDED, ServiceState.FAILED}),
    ServiceState.RESTARTING: frozenset({ServiceState.READY, ServiceState.FAILED}),
    ServiceState.ENDED: frozenset(),
    ServiceState.FAILED: frozenset(),
}
UNREADY = (ServiceState.STARTING, ServiceState.RESTARTING)
PASSES_GATE = (ServiceState.READY, ServiceState.ENDED)  # the driver need not wait for a service that ended well


@dataclass(frozen=True)
class ServicePlan:
    """The part of a service definition that the state machine needs."""

    name: str
    scope: str | int = ALL
    gate: bool = True  # the driver waits for it
    deadline: float = 300.0  # seconds from the start of an instance until it must be ready

    def instance_count(self, nodes: int) -> int:
        """Return the number of instances on this many active nodes."""
        if isinstance(self.scope, int):
            return min(self.scope, nodes)
        return nodes if self.scope == ALL else 1

    def runs_on(self, logical: int, nodes: int) -> bool:
        """Return whether this rank has an instance. The last ranks are used first, since the head runs the driver.

        >>> [ServicePlan("judge", 2).runs_on(rank, 4) for rank in range(4)]
        [False, False, True, True]
        """
        return logical == 0 if self.scope == HEAD else logical >= nodes - self.instance_count(nodes)


@dataclass(frozen=True)
class PlannedInstance:
    """One service on one node."""

    service: str
    rank: int  # the node's number in the allocation
    logical: int
    state: ServiceState
    deadline: float  # time at which it must be ready
    detail: str = ""  # why it is not ready, or how it ended


class Services:
    """The service instances of the current cycle, updated as its nodes join and leave."""

    def __init__(self, plans: Sequence[ServicePlan], nodes: int) -> None:
        """`nodes` is the number of active nodes in a cycle."""
        self.plans = {plan.name: plan for plan in plans}
        self.instances: dict[tuple[str, int], PlannedInstance] = {}
        self.changes: list[PlannedInstance] = []  # in order; the publisher takes them
        self.version = 0  # grows with every change, including removals
        self.failure: PlannedInstance | None = None
        self.ready: Counter[str] = Counter()  # number of ready instances by service
        self._nodes = nodes
        self._gate_blockers = sum(plan.instance_count(nodes) for plan in plans if plan.gate)  # instances not ready
        self._logical: dict[int, int] = {}  # logical ranks of the nodes that run services or are about to
        self._new_nodes: list[int] = []
        self._deadlines: dict[tuple[str, int], float] = {}  # of the instances that are not ready

    @property
    def gate_open(self) -> bool:
        """Whether every instance of every gated service is ready, or was ready and ended well."""
        return self._gate_blockers == 0

    def set_logical(self, rank: int, logical: int | None) -> None:
        """Set the logical rank of a node; None when it has none or is not connected."""
        before = self._logical.get(rank)
        if logical == before:
            return
        if before is not None:
            del self._logical[rank]
            for name in self.plans:
                self._remove((name, rank))
        if logical is not None:
            self._logical[rank] = logical
            self._new_nodes.append(rank)

    def start_on_new_nodes(self, now: float) -> list[tuple[int, tuple[str, ...]]]:
        """Create the instances of nodes that got a rank since the last call; return the services to start on each."""
        new_nodes, self._new_nodes = self._new_nodes, []
        started = []
        for rank in dict.fromkeys(rank for rank in new_nodes if rank in self._logical):
            logical = self._logical[rank]
            plans = [plan for plan in self.plans.values() if plan.runs_on(logical, self._nodes)]
            for plan in plans:
                self._store(PlannedInstance(plan.name, rank, logical, ServiceState.STARTING, now + plan.deadline))
            if plans:
                started.append((rank, tuple(plan.name for plan in plans)))
        return started

    def report(self, service: str, rank: int, state: ServiceState, detail: str, now: float) -> PlannedInstance | None:
        """Apply a node's report and return the instance if its state changed; otherwise only store the detail."""
        instance = self.instances.get((service, rank))
        if instance is None:
            return None
        if state in (instance.state, ServiceState.STARTING) and instance.state in UNREADY:
            self.instances[service, rank] = replace(instance, detail=detail)
            return None
        if state not in SERVICE_TRANSITIONS[instance.state]:
            return None
        changed = replace(instance, state=state, detail=detail, deadline=now + self.plans[service].deadline)
        self._store(changed)
        return changed

    def overdue(self, now: float) -> PlannedInstance | None:
        """Return the instance whose deadline passed first, or None."""
        if not self._deadlines:
            return None
        key = min(self._deadlines, key=lambda key: (self._deadlines[key], key))
        return self.instances[key] if self._deadlines[key] <= now else None

    def instances_of(self, service: str) -> list[PlannedInstance]:
        """Return the instances of a service in the order of their logical ranks."""
        found = [instance for (name, _), instance in self.instances.items() if name == service]
        return sorted(found, key=lambda instance: instance.logical)

    def _store(self, instance: PlannedInstance) -> None:
        key = instance.service, instance.rank
        before = self.instances.get(key)
        self.instances[key] = instance
        self.changes.append(instance)
        self.version += 1
        self._count(instance.service, before, instance)
        if instance.state in UNREADY:
            self._deadlines[key] = instance.deadline
        else:
            self._deadlines.pop(key, None)

    def _remove(self, key: tuple[str, int]) -> None:
        instance = self.instances.pop(key, None)
        if instance is not None:
            self._deadlines.pop(key, None)
            self.version += 1
            self._count(instance.service, instance, None)

    def _count(self, service: str, before: PlannedInstance | None, after: PlannedInstance | None) -> None:
        was, is_now = (one is not None and one.state is ServiceState.READY for one in (before, after))
        self.ready[service] += is_now - was
        if self.plans[service].gate:
            was, is_now = (one is not None and one.state in PASSES_GATE for one in (before, after))
            self._gate_blockers += was - is_now
