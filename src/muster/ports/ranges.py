"""Zones of this host's ports in order of preference.

A free port of the kernel's ephemeral range may be given to an outgoing connection at any time. On some systems that
range begins at 9000, and NeMo-RL has a band below it for each of its components. The zones are ordered by how safe
their ports are; an allocator that falls back on a later one logs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

FIRST_PORT, LAST_PORT = 1024, 65535  # lower ports are privileged
DEFAULT_EPHEMERAL = (32768, 60999)  # Linux's default, for hosts where /proc has no value
BLOCKS_FROM = 10000  # blocks and file leases prefer ports from here on, single ports of services those below

# Ports that NeMo-RL uses, from its ray.sub and its documentation.
RAY_SUB_WORKERS = range(2000, 3000)  # of the Ray that ray.sub starts; under Muster that Ray does not run
NEMO_RL_BANDS = (
    range(1200, 2000),  # ray.sub's Ray daemons, etcd and NATS, master addresses
    RAY_SUB_WORKERS,
    range(3000, 5000),  # generation
    range(5000, 6000),  # Gym servers
    range(6000, 7000),  # sandbox
    range(7000, 9000),  # vLLM and SGLang
)


@dataclass(frozen=True)
class Zone:
    """Ports of one kind as contiguous runs; `where` completes "its ports are ..."."""

    where: str
    runs: tuple[range, ...]
    preferred: bool = False


@dataclass(frozen=True)
class HostPorts:
    """The kernel's settings for ports in this network namespace."""

    ephemeral: tuple[int, int] = DEFAULT_EPHEMERAL
    reserved: tuple[range, ...] = ()  # never given to outgoing connections: promised to other programs
    first: int = FIRST_PORT

    def zones(self) -> list[Zone]:
        """Return every port that may be bound, once; the best zone first.

        >>> [(run[0], run[-1]) for run in HostPorts().zones()[0].runs]
        [(1024, 1199), (9000, 32767), (61000, 65535)]
        >>> [(run[0], run[-1]) for run in HostPorts((9000, 65000)).zones()[0].runs]
        [(1024, 1199), (65001, 65535)]
        """
        every, kernel = [range(self.first, LAST_PORT + 1)], range(self.ephemeral[0], self.ephemeral[1] + 1)
        ours = _without(every, self.reserved)
        outside = _without(ours, [kernel])
        others = [band for band in NEMO_RL_BANDS if band is not RAY_SUB_WORKERS]
        found = (
            Zone("outside the ephemeral range and NeMo-RL's bands", _without(outside, NEMO_RL_BANDS), preferred=True),
            Zone("in the band of ray.sub's Ray workers", _within(outside, [RAY_SUB_WORKERS])),
            Zone("in NeMo-RL's bands", _within(outside, others)),
            Zone("in net.ipv4.ip_local_reserved_ports", _without(every, ours)),
            Zone("in the kernel's ephemeral range", _within(ours, [kernel])),
        )
        return [zone for zone in found if zone.runs]


def host_ports() -> HostPorts:
    """Read the settings of this network namespace from /proc."""
    reserved = []
    for part in _sysctl("ip_local_reserved_ports").replace(",", " ").split():
        low, _, high = part.partition("-")
        with contextlib.suppress(ValueError):
            reserved.append(range(int(low), int(high or low) + 1))
    first = FIRST_PORT
    with contextlib.suppress(ValueError):
        first = max(FIRST_PORT, int(_sysctl("ip_unprivileged_port_start")))
    return HostPorts(ephemeral_range(), tuple(reserved), first)


def ephemeral_range() -> tuple[int, int]:
    """Return the first and the last port that the kernel gives to outgoing connections."""
    try:
        low, high = _sysctl("ip_local_port_range").split()
        return int(low), int(high)
    except ValueError:
        return DEFAULT_EPHEMERAL


def _sysctl(name: str) -> str:
    try:
        with open(f"/proc/sys/net/ipv4/{name}", encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def split_runs(runs: Iterable[range], at: int) -> tuple[list[range], list[range]]:
    """Return the runs below port `at`, and those from it on.

    >>> split_runs([range(1024, 1200), range(9000, 20000)], 10000)
    ([range(1024, 1200), range(9000, 10000)], [range(10000, 20000)])
    """
    runs = list(runs)
    below, above = [range(r.start, min(r.stop, at)) for r in runs], [range(max(r.start, at), r.stop) for r in runs]
    return [run for run in below if run], [run for run in above if run]


def _without(runs: Iterable[range], taken: Sequence[range]) -> tuple[range, ...]:
    left = list(runs)
    for hole in taken:
        left = [part for run in left for part in _cut(run, hole)]
    return tuple(left)


def _cut(run: range, hole: range) -> Iterator[range]:
    for part in (range(run.start, min(run.stop, hole.start)), range(max(run.start, hole.stop), run.stop)):
        if part:
            yield part


def _within(runs: Iterable[range], places: Sequence[range]) -> tuple[range, ...]:
    runs = list(runs)
    shared = [range(max(run.start, place.start), min(run.stop, place.stop)) for place in places for run in runs]
    return tuple(sorted((part for part in shared if part), key=lambda part: part.start))
