"""The spares that can be promoted, indexed so that the nearest to a lost node is found without a scan. No I/O."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

from muster.lifecycle.topology import NodeLocation, natural, shared_parts

SpareKey = tuple[Any, Any, int]  # domain, address and node index, in the order of ranks


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
