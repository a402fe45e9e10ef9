"""Sets and counts of a run's nodes, updated as single nodes change: no event costs a scan of all nodes. No I/O.

NodeSets has all of them. PoolIndex knows whether the nodes of a pool suffice, AvailableSpares the nearest spare.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from muster.lifecycle.config import EXTERNAL_LEADER, RunConfig
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.states import NodeState
from muster.lifecycle.topology import NodeLocation, natural, shared_parts

SpareKey = tuple[Any, Any, int]  # domain, address and node index, in the order of ranks


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


class AvailableSpares:
    """The healthy, connected spares, sorted in the order of ranks within every part of the network.

    A spare is listed under each prefix of its address, for its domain and for the whole machine: the nearest spare is
    the first one under the longest prefix that the lost node shares with any.
    """

    def __init__(self) -> None:
        self._locations: dict[int, NodeLocation] = {}
        self._under: dict[tuple[str | None, str], list[SpareKey]] = {}  # by domain (None: any) and prefix

    def __len__(self) -> int:
        return len(self._locations)

    def __contains__(self, node_index: int) -> bool:
        return node_index in self._locations

    def add(self, node_index: int, location: NodeLocation) -> None:
        """Add a spare that is not listed yet."""
        self._locations[node_index] = location
        for place in _places(location):
            insort(self._under.setdefault(place, []), _key(node_index, location))

    def remove(self, node_index: int) -> None:
        """Remove a spare, which may be unknown."""
        location = self._locations.pop(node_index, None)
        if location is None:
            return
        key = _key(node_index, location)
        for place in _places(location):
            keys = self._under[place]
            del keys[bisect_left(keys, key)]
            if not keys:
                del self._under[place]

    def nearest(self, location: NodeLocation, same_domain: bool) -> int | None:
        """Return the spare nearest to this location: its domain counts first, then the shared part of the address.

        With `same_domain` a spare of another domain is not returned. Of equally near ones the first in order is.
        """
        for place in _places(location):
            if place in self._under and (place[0] is not None or not same_domain):
                return self._under[place][0][-1]
        return None


def _places(location: NodeLocation) -> Iterator[tuple[str | None, str]]:
    """Yield the places that contain this location, the nearest first."""
    parts = shared_parts(location.topology, location.topology)
    for domain in (location.domain, None):
        for count in range(len(parts), -1, -1):
            yield domain, ".".join(parts[:count])


def _key(node_index: int, location: NodeLocation) -> SpareKey:
    return natural(location.domain), natural(location.topology), node_index


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
