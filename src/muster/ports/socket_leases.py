"""A port for a service: free when it was taken, and chosen by no other agent on the host while it is leased.

Ports come from the best zone of ranges.py that has one, in it first from those below Ray's blocks.

Two things hold it. Until the service starts, a bound socket. And for the whole time a name in the abstract namespace of
Unix sockets, which is as wide as the ports are: agents of other runs, or of this one on the same machine, go by. A
program that is none of ours may still be quicker; then the service does not come up, and gets another port.
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
    """One port, until it is released."""

    def __init__(self, number: int, pinned: bool, guard: socket.socket, held: socket.socket) -> None:
        self.number, self.pinned = number, pinned
        self._guard, self._held = guard, held

    def give(self) -> None:
        """To the service, which binds it next."""
        self._held.close()

    def taken(self) -> bool:
        """Whether somebody listens there; asked when the service itself does not run."""
        probe = bind(self.number, reuse=True)
        if probe is not None:
            probe.close()
        return probe is None

    def release(self) -> None:
        self._held.close()
        self._guard.close()


def take(seed: str, pinned: int | None = None, avoid: Container[int] = ()) -> PortLease:
    """The pinned port; else the first free one that is not to be avoided, from a place that depends on the seed."""
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
                logger.warning("port %d for a service lies %s: no better one is free", number, zone.where)
            return lease
    raise OSError("no port of this host is free for a service")


def candidates(seed: str, host: HostPorts) -> Iterator[tuple[Zone, int]]:
    """Every port there is, once; the best first."""
    for zone in host.zones():
        for runs in split_runs(zone.runs, BLOCKS_FROM):
            ports = [port for run in runs for port in run]
            start = zlib.crc32(seed.encode()) % len(ports) if ports else 0
            yield from ((zone, port) for port in ports[start:] + ports[:start])


def _lease(number: int, pinned: bool) -> PortLease | None:
    """None where the port is taken, or, unless it is pinned, in a block that an agent holds for Ray."""
    guard = hold_name(lease_name(number))
    if guard is None:
        return None
    held = bind(number, reuse=True) if pinned or not is_in_a_block(number) else None
    if held is None:
        guard.close()
        return None
    return PortLease(number, pinned, guard, held)
