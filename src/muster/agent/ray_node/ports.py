"""A block of ports for this node's part of Ray: outside the kernel's ephemeral range, and held while the run lasts.

Ray's defaults (6379, 8265, 10001, 10002-19999) clash on shared nodes, and a free port from the ephemeral range may be
an outgoing connection's a moment later. So each agent takes a block for itself. It holds the block's last port, bound
and never used: another agent on the same host, of whatever job or user, that tries the same block finds it taken.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_SIZE = 1000  # a port for each of Ray's worker processes is in it
LOCAL_BLOCK_SIZE = 100  # many virtual nodes share one machine, with few workers each
FIRST_PORT, LAST_PORT = 10000, 65535
FIXED = 10  # ports below this offset have a name; workers take the rest


@dataclass(frozen=True)
class PortBlock:
    """Which port is for what."""

    base: int
    size: int

    @property
    def gcs(self) -> int:
        """The only port that other nodes must know."""
        return self.base

    @property
    def dashboard(self) -> int:
        return self.base + 1

    @property
    def client_server(self) -> int:
        return self.base + 2

    @property
    def unused(self) -> int:
        """The one port with a name that nothing of Ray has."""
        return self.base + FIXED - 1

    @property
    def guard(self) -> int:
        return self.base + self.size - 1

    def arguments(self) -> list[str]:
        """Options of `ray start` that put everything else of a node into the block."""
        names = (
            "node-manager-port", "object-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
            "runtime-env-agent-port", "metrics-export-port",
        )  # fmt: skip
        fixed = [f"--{name}={self.base + 3 + offset}" for offset, name in enumerate(names)]
        return [*fixed, f"--min-worker-port={self.base + FIXED}", f"--max-worker-port={self.guard - 1}"]

    def ports(self) -> range:
        return range(self.base, self.base + self.size)


class HeldBlock:
    """A block that is ours until released."""

    def __init__(self, block: PortBlock, guard: socket.socket) -> None:
        self.block = block
        self._guard = guard

    def release(self) -> None:
        self._guard.close()


def take_block(seed: str, size: int, pinned: int | None = None) -> HeldBlock:
    """The first free block, beginning at one that depends on the seed so that jobs start apart; or the pinned one."""
    tried = 0
    for base in [pinned] if pinned is not None else candidates(seed, size, ephemeral_range()):
        tried += 1
        guard = _free(PortBlock(base, size))
        if guard is not None:
            return HeldBlock(PortBlock(base, size), guard)
    which = f"{pinned}-{pinned + size - 1}" if pinned is not None else f"any of {tried} blocks of {size} ports"
    raise OSError(f"no free ports for Ray: something listens in {which}")


def candidates(seed: str, size: int, ephemeral: tuple[int, int]) -> Iterator[int]:
    """Every block that does not touch the ephemeral range, from a place that depends on the seed."""
    low, high = ephemeral
    bases = [b for b in range(FIRST_PORT, LAST_PORT - size + 2, size) if b + size - 1 < low or b > high]
    if not bases:  # a host whose ephemeral range is everything: the guard and the probe are all there is
        bases = list(range(FIRST_PORT, LAST_PORT - size + 2, size))
    start = zlib.crc32(seed.encode()) % len(bases)
    yield from bases[start:]
    yield from bases[:start]


def ephemeral_range() -> tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = file.read().split()
            return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def _free(block: PortBlock) -> socket.socket | None:
    """The bound guard, if every port of the block could be bound; else None."""
    guard = bind(block.guard)
    if guard is None:
        return None
    for port in block.ports()[:-1]:
        probe = bind(port)
        if probe is None:
            guard.close()
            return None
        probe.close()
    return guard


def bind(port: int, reuse: bool = False) -> socket.socket | None:
    """On all addresses of both families: Ray listens on some of either.

    With `reuse`, as most servers have it, only a listener is a bar; without, also a connection that lingers.
    """
    dual = socket.has_dualstack_ipv6()
    probe = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        probe.bind(("::" if dual else "0.0.0.0", port))
        return probe
    except OSError:
        probe.close()
        return None
