"""A block of ports for Ray on one node, outside the kernel's ephemeral range and held during the whole run.

Ray's default ports (6379, 8265, 10001, 10002-19999) clash on shared nodes, and the kernel may give a free port of the
ephemeral range to an outgoing connection at any time. Each agent therefore acquires a block: of full size in the best
zone of ranges.py, else a smaller but sufficient one there, else one in the next zone. It holds the block's cells and
binds its last port, which is never used, so that agents of other jobs and users on the host find the block taken.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muster.ports.guards import CELL_SIZE, bind, hold_cells, hold_name, lease_name
from muster.ports.ranges import BLOCKS_FROM, HostPorts, Zone, host_ports, split_runs

BLOCK_SIZE = 1000  # includes a port for each of Ray's worker processes
LOCAL_BLOCK_SIZE = 100  # many virtual nodes share one machine, with few workers each
SMALLEST_SIZE, SMALLEST_LOCAL_SIZE = 150, 50  # if ports are scarce; drivers and actors without a CPU need some, too
FIXED = 10  # ports below this offset have a fixed use; workers get the rest


@dataclass(frozen=True)
class PortBlock:
    """The use of each port of a block."""

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
        """The port with a fixed use that Ray does not need."""
        return self.base + FIXED - 1

    @property
    def guard(self) -> int:
        return self.base + self.size - 1

    def arguments(self) -> list[str]:
        """Return options of `ray start` that put all other ports of a node into the block."""
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
    """A block that is held until it is released."""

    def __init__(self, block: PortBlock, guards: Sequence[socket.socket], zone: Zone | None = None) -> None:
        """`zone`: where it was found; None for a pinned block."""
        self.block, self.zone = block, zone
        self._guards = guards

    def warning(self) -> str | None:
        """Return a warning if the block is not in a preferred zone."""
        if self.zone is None or self.zone.preferred:
            return None
        return f"its ports {self.block.base}-{self.block.guard} are {self.zone.where}: no better ones are free"

    def release(self) -> None:
        for guard in self._guards:
            guard.close()


def take_block(seed: str, size: int, pinned: int | None = None, smallest: int | None = None) -> HeldBlock:
    """Acquire the pinned block, else the first free one in an order that depends on the seed, so that jobs differ.

    A block of at least `smallest` ports in the best zone is preferred to one of full size in another zone. Raise
    OSError if there is none.
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
    """Return the size of the smallest sufficient block: two worker processes per CPU.

    >>> smallest_size(4, local=False), smallest_size(224, local=False), smallest_size(4, local=True)
    (150, 459, 50)
    """
    return max(SMALLEST_LOCAL_SIZE if local else SMALLEST_SIZE, FIXED + 2 * cpus + 1)


def sizes(size: int, smallest: int) -> list[int]:
    """Return the sizes to try, the largest first, in whole cells.

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
    """Yield every possible block: in the best zone of all sizes, in the others of the largest size."""
    for zone in host.zones():
        low, high = split_runs(zone.runs, BLOCKS_FROM)
        for size in wanted if zone.preferred else wanted[:1]:
            for runs in (high, low):
                bases = [base for run in runs for base in _bases(run, size)]
                start = zlib.crc32(seed.encode()) % len(bases) if bases else 0
                yield from ((zone, PortBlock(base, size)) for base in bases[start:] + bases[:start])


def _bases(run: range, size: int) -> range:
    """Return the bases of blocks in a run, in whole cells; at multiples of the size if as many fit there."""
    round_ones, in_cells = (
        range(-(-run.start // unit) * unit, run.stop - size + 1, size) for unit in (size, CELL_SIZE)
    )
    return round_ones if len(round_ones) >= len(in_cells) else in_cells


def _free(block: PortBlock) -> list[socket.socket] | None:
    """Return the sockets that hold the block; None if a port of it is bound or leased to a service."""
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
