"""Leases of single ports for services: a leased port was free, and no other agent on the host uses it.

Ports come from the best zone of ranges.py that has a free one, and within it first from those below Ray's blocks.

A bound socket holds the port until the service starts. A name in the abstract namespace of Unix sockets, which has the
same scope as ports, holds it against other agents until it is released. A program that is not Muster's may still bind
the port first; then the service does not start and gets another port.
"""

from __future__ import annotations

import logging
import socket
import zlib
from collections.abc import Container, Iterator

from muster.ports.guards import bind, hold_name, is_in_a_block, lease_name
from muster.ports.ranges import BLOCKS_FROM, HostPorts, Zone, host_ports, split_runs

logger = logging.getLogger(__name__)


class PortLease:
    """A leased port."""

    def __init__(self, number: int, pinned: bool, guard: socket.socket, held: socket.socket) -> None:
        self.number, self.pinned = number, pinned
        self._guard, self._held = guard, held

    def give(self) -> None:
        """Unbind the port, so that the service can bind it."""
        self._held.close()

    def taken(self) -> bool:
        """Return whether another program listens on the port; only meaningful while the service does not run."""
        probe = bind(self.number, reuse=True)
        if probe is not None:
            probe.close()
        return probe is None

    def release(self) -> None:
        self._held.close()
        self._guard.close()


def take(seed: str, pinned: int | None = None, avoid: Container[int] = ()) -> PortLease:
    """Lease the pinned port, else the first free one outside `avoid`, in an order that depends on the seed.

    Raise OSError if there is none.
    """
    if pinned is not None:
        lease = _lease(pinned, pinned=True)
        if lease is None:
            raise OSError(f"port {pinned} is taken on this host; `auto` takes a free one")
        return lease
    for zone, number in candidates(seed, host_ports()):
        if number in avoid:
            continue
        lease = _lease(number, pinned=False)
        if lease is not None:
            if not zone.preferred:
                logger.warning("port %d for a service is %s: no better one is free", number, zone.where)
            return lease
    raise OSError("no port of this host is free for a service")


def candidates(seed: str, host: HostPorts) -> Iterator[tuple[Zone, int]]:
    """Yield every port once, the best first."""
    for zone in host.zones():
        for runs in split_runs(zone.runs, BLOCKS_FROM):
            ports = [port for run in runs for port in run]
            start = zlib.crc32(seed.encode()) % len(ports) if ports else 0
            yield from ((zone, port) for port in ports[start:] + ports[:start])


def _lease(number: int, pinned: bool) -> PortLease | None:
    """Return None if the port is taken or, unless it is pinned, in a block that an agent holds for Ray."""
    guard = hold_name(lease_name(number))
    if guard is None:
        return None
    held = bind(number, reuse=True) if pinned or not is_in_a_block(number) else None
    if held is None:
        guard.close()
        return None
    return PortLease(number, pinned, guard, held)
