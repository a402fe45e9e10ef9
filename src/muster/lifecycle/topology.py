"""Locations of nodes in the machine, and the order of ranks that follows from them. Pure functions.

known about the nodes   order of ranks
nothing                 the leader, then the others by number
domain, topology        the leader, the others in its domain, then domain by domain; within one by topology, number
with segments of S      the same, but a domain contributes only whole segments of S nodes; its other nodes get no rank
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class NodeLocation:
    """The location of a node; unknown parts are empty."""

    domain: str = ""  # nodes of one domain are nearest to each other: an NVLink domain, else a leaf switch or a block
    topology: str = ""  # address in the network, from the top: "spine1.leaf3.n17"


UNKNOWN_LOCATION = NodeLocation()


@lru_cache(maxsize=1 << 16)  # of ten thousand nodes most share a domain
def natural(text: str) -> tuple[object, ...]:
    """Return a sort key that orders numbers in names numerically.

    >>> sorted(["leaf10", "leaf9"], key=natural)
    ['leaf9', 'leaf10']
    """
    return tuple(int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]{1,18})", text)))


def topology_order(locations: Mapping[int, NodeLocation], leader: int) -> list[int]:
    """Return the node numbers in the order of their ranks, independent of the order of arrival."""
    home = locations[leader].domain if leader in locations else None

    def key(number: int) -> tuple[object, ...]:
        location = locations[number]
        return number != leader, location.domain != home, natural(location.domain), natural(location.topology), number

    return sorted(locations, key=key)


def rank_order(locations: Mapping[int, NodeLocation], leader: int, segment: int) -> list[int]:
    """Return the nodes that can have a rank, in the order of ranks. A node of unknown domain belongs to no segment.

    >>> rank_order({n: NodeLocation("ab"[n % 2]) for n in range(5)}, leader=1, segment=2)
    [1, 3, 0, 2]
    """
    ordered = topology_order(locations, leader)
    if segment == 1:
        return ordered
    domains: dict[str, list[int]] = {}
    for number in ordered:
        domains.setdefault(locations[number].domain, []).append(number)
    domains.pop("", None)
    return [number for members in domains.values() for number in members[: len(members) // segment * segment]]


def shared_parts(one: str, other: str) -> list[str]:
    """Return the parts that two addresses have in common, from the top, up to the first empty one.

    >>> shared_parts("spine1.leaf3.n17", "spine1.leaf4.n17")
    ['spine1']
    """
    shared = []
    for ours, theirs in zip(one.split("."), other.split(".")):
        if ours != theirs or not ours:
            break
        shared.append(ours)
    return shared
