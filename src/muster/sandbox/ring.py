"""Which of several endpoints a session belongs to: the same one for everybody who has the same list, in any order.

This is nginx's `hash ... consistent` (ketama), so that the gateways of nodes with and without nginx, and clients that
have all endpoints, agree: 160 points on a ring of 32 bits for each endpoint; a key belongs to the first point at or
after its own. When an endpoint is lost, only its own sessions move.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit
from zlib import crc32

POINTS = 160


class Ring:
    """Made once for a list of endpoints."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        points = sorted(
            (point, endpoint) for endpoint in sorted(set(endpoints)) for point in points_of(urlsplit(endpoint).netloc)
        )
        self._hashes = [point for point, _ in points]
        self._owners = [endpoint for _, endpoint in points]
        self._size = len(set(endpoints))

    def order(self, key: bytes) -> list[str]:
        """The endpoints in the order in which this key prefers them."""
        first = bisect_left(self._hashes, crc32(key))
        found: dict[str, None] = {}
        for step in range(len(self._owners)):
            found[self._owners[(first + step) % len(self._owners)]] = None
            if len(found) == self._size:
                break
        return list(found)

    def owner(self, key: bytes) -> str:
        return self._owners[bisect_left(self._hashes, crc32(key)) % len(self._owners)]


def points_of(address: str) -> list[int]:
    """Of HOST:PORT: a chain of checksums, each of the host, the port and the one before."""
    host, _, port = address.rpartition(":") if address.rpartition(":")[2].isdigit() else (address, "", "")
    base = crc32(host.encode() + b"\0" + port.encode())
    points, last = [], 0
    for _ in range(POINTS):
        last = crc32(last.to_bytes(4, "little"), base)
        points.append(last)
    return points


@lru_cache(maxsize=16)
def _ring(endpoints: tuple[str, ...]) -> Ring:
    return Ring(endpoints)


def ranked(key: str, endpoints: Sequence[str]) -> list[str]:
    """The endpoints in the order in which this key prefers them.

    >>> ranked("alice", ["http://b", "http://a"]) == ranked("alice", ["http://a", "http://b"])
    True
    """
    return _ring(tuple(endpoints)).order(key.encode())
