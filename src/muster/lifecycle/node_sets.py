"""Sets and counts of a run's nodes, updated as single nodes change: no event costs a scan of all nodes. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from muster.lifecycle.config import EXTERNAL_LEADER, RunConfig
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.spares import AvailableSpares
from muster.lifecycle.states import NodeState


class PoolIndex:
    """The nodes of a NodePool without their order: whether they suffice is known at any time."""

    def __init__(self, config: RunConfig) -> None:
        self._needed, self._segment = config.active_nodes, config.segment
        self._domains: dict[int, str] = {}  # domain of each node in the pool
        self._sizes: Counter[str] = Counter()  # nodes by domain
        self._in_segments = 0  # nodes in whole segments

    def __len__(self) -> int:
        return len(self._domains)

    def __contains__(self, node_index: int) -> bool:
        return node_index in self._domains

    def add(self, node_index: int, domain: str) -> None:
        """Add a node, or change its domain."""
        before = self._domains.get(node_index)
        if before != domain:
            self._resize(before, -1)
            self._domains[node_index] = domain
            self._resize(domain, 1)

    def remove(self, node_index: int) -> None:
        """Remove a node, which may not be in the pool."""
        self._resize(self._domains.pop(node_index, None), -1)

    def is_sufficient(self, leader: int, by_location: bool = True, without: int | None = None) -> bool:
        """Return whether a cycle can be formed from the pool, without the node `without`. See NodePool.

        If not `by_location`, segments do not count: the locations of some nodes are not known yet.
        """
        domain = self._domains.get(without) if without is not None else None
        if domain is not None and without is not None:
            self.remove(without)
            sufficient = self.is_sufficient(leader, by_location)
            self.add(without, domain)
            return sufficient
        if leader != EXTERNAL_LEADER and leader not in self._domains:
            return False
        if self._segment == 1 or not by_location:
            return len(self._domains) >= self._needed
        if leader != EXTERNAL_LEADER and self._sizes[self._domains[leader]] < self._segment:
            return False
        return self._in_segments >= self._needed

    def _resize(self, domain: str | None, change: int) -> None:
        if not domain or self._segment == 1:  # a node of unknown domain belongs to no segment
            return
        before = self._sizes[domain]
        self._sizes[domain] = before + change
        self._in_segments += ((before + change) // self._segment - before // self._segment) * self._segment


class NodeSets:
    """The sets and counts on which the state machine's rules depend."""

    def __init__(self, config: RunConfig, nodes: Iterable[RunNode]) -> None:
        self.members: set[int] = set()  # have joined, have not left, and are not excluded
        self.excluded: set[int] = set()
        self.available, self.usable, self.possible = PoolIndex(config), PoolIndex(config), PoolIndex(config)
        self.spares = AvailableSpares()
        self.joined = 0
        self.pending = 0
        self.unready = 0
        self.unknown_locations = 0  # pending nodes that have never arrived
        self.joined_hosts: dict[str, int] = {}  # the first node of each host that is not expected any more
        self.membership_version = 0  # grows when a node joins, leaves or is excluded
        for node in nodes:
            self._count(node, 1)
            self._index(node)

    def update(self, before: RunNode, after: RunNode) -> None:
        """Replace a node. Every change of a node passes through here."""
        self._count(before, -1)
        self._count(after, 1)
        excluded = (before.role is Role.EXCLUDED) != (after.role is Role.EXCLUDED)
        self.membership_version += excluded or before.joined != after.joined
        self._index(after)

    def _count(self, node: RunNode, change: int) -> None:
        self.joined += change * node.joined
        self.unready += change * node.unready
        if node.pending:
            self.pending += change
            self.unknown_locations += change * (node.state is NodeState.EXPECTED)

    def _index(self, node: RunNode) -> None:
        node_index, domain, available = node.node_index, node.location.domain, node.available
        if node.state is not NodeState.EXPECTED and self.joined_hosts.setdefault(node.host, node_index) > node_index:
            self.joined_hosts[node.host] = node_index
        if node.role is Role.EXCLUDED:
            self.excluded.add(node_index)
        for nodes, is_in in (
            (self.available, available),
            (self.usable, node.joined and node.eligible),
            (self.possible, available or node.pending),
        ):
            if is_in:
                nodes.add(node_index, domain)
            else:
                nodes.remove(node_index)
        if node.joined and node.role is not Role.EXCLUDED:
            self.members.add(node_index)
        else:
            self.members.discard(node_index)
        if available and node.role is Role.SPARE:
            if node_index not in self.spares:
                self.spares.add(node_index, node.location)
        else:
            self.spares.remove(node_index)
