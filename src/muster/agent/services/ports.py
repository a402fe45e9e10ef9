"""A port of a service's own: free when it was taken, and chosen by no other agent on the host while it is leased.

Two things hold it. Until the service starts, a bound socket. And for the whole time a name in the abstract namespace of
Unix sockets, which is as wide as the ports are: agents of other runs, or of this one on the same machine, go by. A
program that is none of ours may still be quicker; then the service does not come up, and gets another port.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Container, Iterator

from muster.agent.ray_node.ports import bind

FIRST, LAST = 5000, 9999  # below Ray's blocks and below the kernel's ephemeral range


class Lease:
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


def take(seed: str, pinned: int | None = None, avoid: Container[int] = ()) -> Lease:
    """The pinned port; else the first free one that is not to be avoided, from a place that depends on the seed."""
    for number in [pinned] if pinned is not None else candidates(seed, avoid):
        guard = _name(number)
        held = bind(number, reuse=True) if guard is not None else None
        if guard is not None and held is not None:
            return Lease(number, pinned is not None, guard, held)
        if guard is not None:
            guard.close()
    which = f"port {pinned} is" if pinned is not None else f"all ports from {FIRST} to {LAST} are"
    raise OSError(f"{which} taken on this host; `auto` takes a free one")


def candidates(seed: str, avoid: Container[int] = ()) -> Iterator[int]:
    """Every port there is, once."""
    size = LAST - FIRST + 1
    start = zlib.crc32(seed.encode()) % size
    ports = (FIRST + (start + step) % size for step in range(size))
    return (port for port in ports if port not in avoid)


def _name(port: int) -> socket.socket | None:
    guard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        guard.bind(f"\0muster-port-{port}")
        return guard
    except OSError:
        guard.close()
        return None
