"""Sets and counts of a run's nodes, updated as single nodes change: no event costs a scan of all nodes. No I/O.

NodeSets has all of them. PoolIndex knows whether the nodes of a pool suffice, AvailableSpares the nearest spare.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from muster.lifecycle.config import EXTERNAL_LEADER, RunConfig
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.states import NodeState
from muster.lifecycle.topology import NodeLocation, natural, shared_parts

SpareKey = tuple[Any, Any, int]  # domain, address and node index, in the order of ranks


class PoolIndex:
    """The nodes of a NodePool without their order: whether they suffice is known at any time."""

    def __init__(self, config: RunConfig) -> None:
        self._needed, self._segment = config.needed_nodes, config.segment
        self._domains: dict[int, str] = {}  # domain of each node in the pool
        self._sizes: Counter[str] = Counter()  # nodes by domain
        self._in_segments = 0  # nodes in whole segments

    def __len__(self) -> int:
        return len(self._domains)

    def __contains__(self, node_index: int) -> bool:
        return node_index in self._domains

    def __iter__(self) -> Iterator[int]:
        return iter(self._domains)

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

    def is_sufficient(self, leader: int, by_location: bool = True, without: Collection[int] = ()) -> bool:
        """Return whether a cycle can be formed from the pool, without the nodes `without`. See NodePool.

        If not `by_location`, segments do not count: the locations of some nodes are not known yet.
        """
        left_out = {node_index: self._domains[node_index] for node_index in without if node_index in self._domains}
        if left_out:
            for node_index in left_out:
                self.remove(node_index)
            sufficient = self.is_sufficient(leader, by_location)
            for node_index, domain in left_out.items():
                self.add(node_index, domain)
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

    def first(self) -> int | None:
        """Return the first spare in the order of ranks; None if there is none."""
        return self._under[None, ""][0][-1] if self._locations else None

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


class _Traits(NamedTuple):
    """The sets and counts to which a node belongs. They follow from its state, its role and its health."""

    expected: bool
    joined: bool
    unready: bool
    pending: bool
    awaited: bool
    available: bool
    usable: bool
    possible: bool
    excluded: bool
    member: bool
    spare: bool


@cache
def _traits(state: NodeState, role: Role, healthy: bool) -> _Traits:
    node = RunNode(0, "", state, role, unhealthy_reason=None if healthy else "unhealthy")
    excluded = role is Role.EXCLUDED
    return _Traits(
        expected=state is NodeState.EXPECTED,
        joined=node.joined,
        unready=node.unready,
        pending=node.pending,
        awaited=node.awaited,
        available=node.available,
        usable=node.joined and node.eligible,
        possible=node.available or node.pending,
        excluded=excluded,
        member=node.joined and not excluded,
        spare=node.available and role is Role.SPARE,
    )


def _traits_of(node: RunNode) -> _Traits:
    return _traits(node.state, node.role, node.unhealthy_reason is None)


_NO_TRAITS = _Traits(*(False for _ in _Traits._fields))


class NodeSets:
    """The sets and counts on which the state machine's rules depend. An update touches only what a change affects."""

    def __init__(self, config: RunConfig, nodes: Iterable[RunNode]) -> None:
        self.members: set[int] = set()  # have joined, have not left, and are not excluded
        self.excluded: set[int] = set()
        self.available, self.usable, self.possible = PoolIndex(config), PoolIndex(config), PoolIndex(config)
        self.spares = AvailableSpares()
        self.joined = 0
        self.pending = 0
        self.awaited = 0
        self.unready = 0
        self.unknown_locations = 0  # pending nodes that have never arrived
        self.joined_hosts: dict[str, int] = {}  # the first node of each host that is not expected any more
        self.membership_version = 0  # grows when a node joins, leaves or is excluded
        for node in nodes:
            self._apply(node, _NO_TRAITS, _traits_of(node))
            if node.state is not NodeState.EXPECTED:
                self._add_host(node)

    def enough_available(self, leader: int) -> bool:
        """Return whether a round led by this node could close now."""
        return self.available.is_sufficient(leader)

    def update(self, before: RunNode, after: RunNode) -> None:
        """Replace a node. Every change of a node passes through here. Its location may change until it arrives."""
        old, new = _traits_of(before), _traits_of(after)
        if old is not new:
            self._apply(after, old, new)
            if old.expected and not new.expected:
                self._add_host(after)
        if before.location is not after.location:
            for pool in (self.available, self.usable, self.possible):
                if after.node_index in pool:
                    pool.add(after.node_index, after.location.domain)

    def _apply(self, node: RunNode, old: _Traits, new: _Traits) -> None:
        self._count(old, new)
        self._index(node, old, new)
        if new.member != old.member:
            (self.members.add if new.member else self.members.discard)(node.node_index)
        if new.excluded:  # forever
            self.excluded.add(node.node_index)
        if new.spare and not old.spare:
            self.spares.add(node.node_index, node.location)
        elif old.spare and not new.spare:
            self.spares.remove(node.node_index)

    def _count(self, old: _Traits, new: _Traits) -> None:
        if new.joined != old.joined or new.excluded != old.excluded:
            self.membership_version += 1
        self.joined += new.joined - old.joined
        self.unready += new.unready - old.unready
        self.pending += new.pending - old.pending
        self.awaited += new.awaited - old.awaited
        self.unknown_locations += (new.pending and new.expected) - (old.pending and old.expected)

    def _index(self, node: RunNode, old: _Traits, new: _Traits) -> None:
        node_index, domain = node.node_index, node.location.domain
        for pool, was_in, is_in in (
            (self.available, old.available, new.available),
            (self.usable, old.usable, new.usable),
            (self.possible, old.possible, new.possible),
        ):
            if is_in and not was_in:
                pool.add(node_index, domain)
            elif was_in and not is_in:
                pool.remove(node_index)

    def _add_host(self, node: RunNode) -> None:
        if self.joined_hosts.setdefault(node.host, node.node_index) > node.node_index:
            self.joined_hosts[node.host] = node.node_index
