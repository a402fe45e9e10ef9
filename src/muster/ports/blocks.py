"""A block of ports for this node's part of Ray: outside the kernel's ephemeral range, and held while the run lasts.

Ray's defaults (6379, 8265, 10001, 10002-19999) clash on shared nodes, and a free port from the ephemeral range may be
an outgoing connection's a moment later. So each agent takes a block for itself, from the best zone of ranges.py
that has one: of the full size, or else in the best zone a smaller one that is large enough; then from the next zone. It
holds the block's cells, and its last port, bound and never used: another agent on the same host, of whatever job or
user, that tries any of these ports finds them taken.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muster.ports.guards import CELL_SIZE, bind, hold_cells, hold_name, lease_name
from muster.ports.ranges import BLOCKS_FROM, HostPorts, Zone, host_ports, split_runs

BLOCK_SIZE = 1000  # a port for each of Ray's worker processes is in it
LOCAL_BLOCK_SIZE = 100  # many virtual nodes share one machine, with few workers each
SMALLEST_SIZE, SMALLEST_LOCAL_SIZE = 150, 50  # where ports are scarce: drivers and actors without a CPU need some, too
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
            "node-manager-port",
            "object-manager-port",
            "dashboard-agent-listen-port",
            "dashboard-agent-grpc-port",
            "runtime-env-agent-port",
            "metrics-export-port",
        )
        fixed = [f"--{name}={self.base + 3 + offset}" for offset, name in enumerate(names)]
        return [*fixed, f"--min-worker-port={self.base + FIXED}", f"--max-worker-port={self.guard - 1}"]

    def ports(self) -> range:
        return range(self.base, self.base + self.size)


class HeldBlock:
    """A block that is ours until released."""

    def __init__(self, block: PortBlock, guards: Sequence[socket.socket], zone: Zone | None = None) -> None:
        """`zone` is where it was found; None of a pinned one."""
        self.block, self.zone = block, zone
        self._guards = guards

    def warning(self) -> str | None:
        """What to say of a block that is not where it should be."""
        if self.zone is None or self.zone.preferred:
            return None
        return f"its ports {self.block.base}-{self.block.guard} lie {self.zone.where}: no better ones are free"

    def release(self) -> None:
        for guard in self._guards:
            guard.close()


def take_block(seed: str, size: int, pinned: int | None = None, smallest: int | None = None) -> HeldBlock:
    """The first free block, beginning at one that depends on the seed so that jobs start apart; or the pinned one.

    Where the best zone has none of this size, one of at least `smallest` ports there is better than any elsewhere.
    """
    if pinned is not None:
        guards = _free(PortBlock(pinned, size))
        if guards is None:
            raise OSError(f"no free ports for Ray: something listens in {pinned}-{pinned + size - 1}")
        return HeldBlock(PortBlock(pinned, size), guards)
    tried = 0
    for zone, block in candidates(seed, sizes(size, smallest or size), host_ports()):
        tried += 1
        guards = _free(block)
        if guards is not None:
            return HeldBlock(block, guards, zone)
    raise OSError(f"no free ports for Ray: something listens in any of {tried} blocks of {size} ports")


def smallest_size(cpus: int, local: bool) -> int:
    """Ports of the smallest block that will do for this many CPUs: two worker processes for each of them.

    >>> smallest_size(4, local=False), smallest_size(224, local=False), smallest_size(4, local=True)
    (150, 459, 50)
    """
    return max(SMALLEST_LOCAL_SIZE if local else SMALLEST_SIZE, FIXED + 2 * cpus + 1)


def sizes(size: int, smallest: int) -> list[int]:
    """The sizes to try, the largest first, in whole cells.

    >>> sizes(1000, 300), sizes(100, 50), sizes(100, 100)
    ([1000, 500, 300], [100, 50], [100])
    """
    found = [_in_cells(size)]
    while found[-1] > _in_cells(smallest):
        found.append(max(_in_cells(found[-1] // 2), _in_cells(smallest)))
    return found


def _in_cells(ports: int) -> int:
    return -(-ports // CELL_SIZE) * CELL_SIZE


def candidates(seed: str, wanted: Sequence[int], host: HostPorts) -> Iterator[tuple[Zone, PortBlock]]:
    """Every block there may be: in the best zone of all sizes, in the others of the largest."""
    for zone in host.zones():
        low, high = split_runs(zone.runs, BLOCKS_FROM)
        for size in wanted if zone.preferred else wanted[:1]:
            for runs in (high, low):
                bases = [base for run in runs for base in _bases(run, size)]
                start = zlib.crc32(seed.encode()) % len(bases) if bases else 0
                yield from ((zone, PortBlock(base, size)) for base in bases[start:] + bases[:start])


def _bases(run: range, size: int) -> range:
    """Where blocks of this size fit into a run, in whole cells; at multiples of the size, if as many fit there."""
    round_ones, in_cells = (
        range(-(-run.start // unit) * unit, run.stop - size + 1, size) for unit in (size, CELL_SIZE)
    )
    return round_ones if len(round_ones) >= len(in_cells) else in_cells


def _free(block: PortBlock) -> list[socket.socket] | None:
    """What holds the block, if every port of it could be bound and none is leased to a service; else None."""
    held = hold_cells(range(block.base, block.base + block.size))
    if held is None:
        return None
    guard = bind(block.guard)
    if guard is not None:
        held.append(guard)
        if all(_is_free(port) for port in block.ports()[:-1]):
            return held
    for one in held:
        one.close()
    return None


def _is_free(port: int) -> bool:
    for probe in (bind(port), hold_name(lease_name(port))):
        if probe is None:
            return False
        probe.close()
    return True
