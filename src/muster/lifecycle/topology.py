"""Where nodes are in the machine, and the order of ranks that follows from it. Pure.

known of the nodes      order of ranks
nothing                 the leader, then the others by number
domain, topology        the leader, the others of its domain, then domain after domain; inside one by topology, number
with segments of S      the same, but a domain gives whole segments of S nodes only: what is over has no rank
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class NodeLocation:
    """Where a node is; empty is what is not known."""

    domain: str = ""  # nodes of one domain are nearest to each other: an NVLink domain, else a leaf switch or a block
    topology: str = ""  # its address in the network, from the top: "spine1.leaf3.n17"


NOWHERE = NodeLocation()


@lru_cache(maxsize=1 << 16)  # of ten thousand nodes most share a domain
def natural(text: str) -> tuple[object, ...]:
    """A key that sorts numbers in names as numbers.

    >>> sorted(["leaf10", "leaf9"], key=natural)
    ['leaf9', 'leaf10']
    """
    return tuple(int(part) if place % 2 else part for place, part in enumerate(re.split(r"([0-9]{1,18})", text)))


def in_order(places: Mapping[int, NodeLocation], leader: int) -> list[int]:
    """Numbers of the nodes in the order of their ranks. Who came first does not matter."""
    home = places[leader].domain if leader in places else None

    def key(number: int) -> tuple[object, ...]:
        place = places[number]
        return number != leader, place.domain != home, natural(place.domain), natural(place.topology), number

    return sorted(places, key=key)


def seats(places: Mapping[int, NodeLocation], leader: int, segment: int) -> list[int]:
    """Those that can have a rank, in the order of ranks. A node of no known domain is in no segment.

    >>> seats({n: Place("ab"[n % 2]) for n in range(5)}, lead=1, segment=2)
    [1, 3, 0, 2]
    """
    ordered = in_order(places, leader)
    if segment == 1:
        return ordered
    domains: dict[str, list[int]] = {}
    for number in ordered:
        domains.setdefault(places[number].domain, []).append(number)
    domains.pop("", None)
    return [number for near in domains.values() for number in near[: len(near) // segment * segment]]


def distance(one: NodeLocation, other: NodeLocation) -> tuple[bool, int]:
    """How far apart two nodes are, to be compared: another domain; then how little of the address they share."""
    shared = 0
    for ours, theirs in zip(one.topology.split("."), other.topology.split(".")):
        if ours != theirs or not ours:
            break
        shared += 1
    return one.domain != other.domain, -shared
