"""Consistent hashing of sessions and workspaces to endpoints: gateways and clients with the same list agree.

This is ketama as nginx has it: 160 points on a ring of 32 bits for each endpoint; a key belongs to the first point at
or after its hash. When an endpoint is lost, only its own sessions move. The points must never change: gateways and
clients of different versions have to agree.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from urllib.parse import urlsplit
from zlib import crc32

POINTS_PER_ENDPOINT = 160


class Ring:
    """The ring of a list of endpoints, in any order.

    10,000 endpoints have 1.6 million points. Each point is one integer: its position in the upper 32 bits, the index of
    its endpoint in the lower. They are sorted in 256 parts: a single sort would hold the interpreter lock for a second.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = sorted(set(endpoints))
        parts: list[list[int]] = [[] for _ in range(256)]
        for number, endpoint in enumerate(self._endpoints):
            for point in points_of(urlsplit(endpoint).netloc):
                parts[point >> 24].append(point << 32 | number)
        self._points = array("Q")
        for part in parts:
            part.sort()
            self._points.extend(part)
            part.clear()

    def walk(self, key: bytes) -> Iterator[str]:
        """Yield the endpoints in the order in which this key prefers them; only the first is cheap."""
        first, seen = bisect_left(self._points, crc32(key) << 32), set[int]()
        for step in range(len(self._points)):
            number = self._points[(first + step) % len(self._points)] & 0xFFFFFFFF
            if number not in seen:
                seen.add(number)
                yield self._endpoints[number]
                if len(seen) == len(self._endpoints):
                    return

    def order(self, key: bytes) -> list[str]:
        """Return the endpoints in the order in which this key prefers them."""
        return list(self.walk(key))

    def owner(self, key: bytes) -> str:
        return next(self.walk(key))


def points_of(address: str) -> list[int]:
    """Return the points of HOST:PORT: a chain of checksums of host, port and the previous checksum."""
    host, _, port = address.rpartition(":") if address.rpartition(":")[2].isdigit() else (address, "", "")
    base = crc32(host.encode() + b"\0" + port.encode())
    points, last = [], 0
    for _ in range(POINTS_PER_ENDPOINT):
        last = crc32(last.to_bytes(4, "little"), base)
        points.append(last)
    return points


@lru_cache(maxsize=16)
def _ring(endpoints: tuple[str, ...]) -> Ring:
    return Ring(endpoints)


def ranked(key: str, endpoints: Sequence[str]) -> list[str]:
    """Return the endpoints in the order in which this key prefers them.

    >>> ranked("alice", ["http://b", "http://a"]) == ranked("alice", ["http://a", "http://b"])
    True
    """
    return _ring(tuple(endpoints)).order(key.encode())
