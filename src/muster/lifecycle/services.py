"""The services of a cycle: their instances, the gate that holds the driver, and deadlines. No I/O, no clock.

state       leaves on                                                to
starting    its probe succeeds                                       ready
starting    its process ends; its deadline passes                    failed
ready       its process ends, and it may be restarted                restarting
ready       its process exits with 0 and is not restarted            ended
restarting  its probe succeeds                                       ready
restarting  its deadline passes; it has no restarts left             failed
(any)       its node is lost, replaced or stopped                    (the instance is removed)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from heapq import heappop, heappush

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
    ranks: range | None = None  # those of the group of nodes to which the scope applies; None: all
    is_endpoint: bool = False  # it is the endpoint of replicas
    of: str | None = None  # of an endpoint: the service whose instances are the replicas

    def instance_count(self, nodes: int) -> int:
        """Return the number of instances on this many active nodes."""
        candidates = len(self._candidates(nodes))
        if isinstance(self.scope, int):
            return min(self.scope, candidates)
        return candidates if self.scope == ALL else 1

    def runs_on(self, rank: int, nodes: int) -> bool:
        """Return whether this rank has an instance. The last ranks are used first, since the head runs the driver.

        >>> [ServicePlan("judge", 2).runs_on(rank, 4) for rank in range(4)]
        [False, False, True, True]
        """
        if self.scope == ALL:
            return self.ranks is None or rank in self.ranks  # also on a node that joins later
        candidates = self._candidates(nodes)
        if rank not in candidates:
            return False
        return rank == candidates[0] if self.scope == HEAD else rank >= candidates[-self.instance_count(nodes)]

    def _candidates(self, nodes: int) -> range:
        return range(nodes) if self.ranks is None else self.ranks


@dataclass(frozen=True)
class PlannedInstance:
    """One service on one node."""

    service: str
    node_index: int  # the node's number in the allocation
    rank: int
    state: ServiceState
    deadline: float  # time at which it must be ready
    detail: str = ""  # why it is not ready, or how it ended


class Services:
    """The service instances of the current cycle, updated as its nodes join and leave."""

    def __init__(self, plans: Sequence[ServicePlan], nodes: int) -> None:
        """`nodes` is the number of active nodes in a cycle."""
        self.plans = {plan.name: plan for plan in plans}
        self.instances: dict[tuple[str, int], PlannedInstance] = {}
        self.version = 0  # grows with every change, including removals
        self.ready: Counter[str] = Counter()  # number of ready instances by service
        self._nodes = nodes
        self._gate_blockers = sum(plan.instance_count(nodes) for plan in plans if plan.gate)  # instances not ready
        self._ranks: dict[int, int] = {}  # ranks of the nodes that run services or are about to
        self._new_nodes: list[int] = []
        self._by_rank: dict[str, list[tuple[int, int]]] = {name: [] for name in self.plans}  # rank and node index
        self._deadlines: list[tuple[float, tuple[str, int]]] = []  # a heap; also of instances since ready or gone

    @property
    def gate_open(self) -> bool:
        """Whether every instance of every gated service is ready, or was ready and ended well."""
        return self._gate_blockers == 0

    def set_nodes(self, nodes: int) -> None:
        """Set the number of active nodes with which the cycle begins, before any of its services has started."""
        plans = [plan for plan in self.plans.values() if plan.gate]
        self._gate_blockers += sum(plan.instance_count(nodes) - plan.instance_count(self._nodes) for plan in plans)
        self._nodes = nodes

    def wanted(self, service: str) -> int:
        """Return the number of instances of a service: those of the cycle's first nodes, and of later ones."""
        return max(self.plans[service].instance_count(self._nodes), len(self._by_rank[service]))

    def set_rank(self, node_index: int, rank: int | None) -> None:
        """Set the rank of a node; None when it has none or is not connected."""
        before = self._ranks.get(node_index)
        if rank == before:
            return
        if before is not None:
            del self._ranks[node_index]
            for name in self.plans:
                self._remove((name, node_index))
        if rank is not None:
            self._ranks[node_index] = rank
            self._new_nodes.append(node_index)

    def start_on_new_nodes(self, now: float) -> list[PlannedInstance]:
        """Create and return the instances of nodes that got a rank since the last call, node by node."""
        new_nodes, self._new_nodes = self._new_nodes, []
        started = []
        for node_index in dict.fromkeys(node_index for node_index in new_nodes if node_index in self._ranks):
            rank = self._ranks[node_index]
            for plan in self.plans.values():
                if plan.runs_on(rank, self._nodes):
                    deadline = now + plan.deadline
                    started.append(PlannedInstance(plan.name, node_index, rank, ServiceState.STARTING, deadline))
                    self._store(started[-1])
        return started

    def report(
        self, service: str, node_index: int, state: ServiceState, detail: str, now: float
    ) -> PlannedInstance | None:
        """Apply a node's report and return the instance if its state changed; otherwise only store the detail."""
        instance = self.instances.get((service, node_index))
        if instance is None:
            return None
        if state in (instance.state, ServiceState.STARTING) and instance.state in UNREADY:
            self.instances[service, node_index] = replace(instance, detail=detail)
            return None
        if state not in SERVICE_TRANSITIONS[instance.state]:
            return None
        changed = replace(instance, state=state, detail=detail, deadline=now + self.plans[service].deadline)
        self._store(changed)
        return changed

    def overdue(self, now: float) -> PlannedInstance | None:
        """Return the instance whose deadline passed first, or None."""
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, key = self._deadlines[0]
            instance = self.instances.get(key)
            if instance is not None and instance.state in UNREADY and instance.deadline == deadline:
                return instance
            heappop(self._deadlines)
        return None

    def instances_of(self, service: str) -> list[PlannedInstance]:
        """Return the instances of a service in the order of their ranks."""
        return [self.instances[service, node_index] for _, node_index in self._by_rank[service]]

    def _store(self, instance: PlannedInstance) -> None:
        key = instance.service, instance.node_index
        before = self.instances.get(key)
        self.instances[key] = instance
        self.version += 1
        self._count(instance.service, before, instance)
        if before is None:
            insort(self._by_rank[instance.service], (instance.rank, instance.node_index))
        if instance.state in UNREADY:
            heappush(self._deadlines, (instance.deadline, key))

    def _remove(self, key: tuple[str, int]) -> None:
        instance = self.instances.pop(key, None)
        if instance is not None:
            ranks = self._by_rank[instance.service]
            del ranks[bisect_left(ranks, (instance.rank, instance.node_index))]
            self.version += 1
            self._count(instance.service, instance, None)

    def _count(self, service: str, before: PlannedInstance | None, after: PlannedInstance | None) -> None:
        was, is_now = (one is not None and one.state is ServiceState.READY for one in (before, after))
        self.ready[service] += is_now - was
        if self.plans[service].gate:
            was, is_now = (one is not None and one.state in PASSES_GATE for one in (before, after))
            self._gate_blockers += was - is_now
