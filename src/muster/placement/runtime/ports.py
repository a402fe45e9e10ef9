"""A port of this node that nobody else is given: leases in one file per user and host, taken under a lock.

A port that is free when it is looked at may be given to two askers before either of them binds it. So what was given
away is written down until its holder is gone, or, where no holder is known, for a while in which it has to be bound.
Another user's programs do not read the file; against them there is the look itself, on all addresses of both families.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from muster.port_ranges import LAST_PORT, host_ports, is_in_a_block, split_runs
from muster.process.proctree import start_time

OURS_FROM = 10000  # below, where both fit, are the ports of services
UNBOUND_LEASE_S = 300.0


@dataclass(frozen=True)
class PortReservation:
    """A port and for how long it is somebody's."""

    port: int
    until: float  # of the host's clock; 0 when a holder decides
    holder: int = 0  # a process
    holder_began: int = 0  # told apart from a later one with the same number

    def alive(self) -> bool:
        return start_time(self.holder) == self.holder_began if self.holder else time.time() < self.until


def take(first: int | None = None, *, last: int = LAST_PORT, holder: int = 0, directory: Path | None = None) -> int:
    """A free port, from `first` on or from the best zone of port_ranges.py; OSError when there is none.

    It stays taken while process `holder` lives; without one, for UNBOUND_LEASE_S.
    """
    with _leases(directory or _directory()) as leases:
        taken = {lease.port for lease in leases}
        for port in _candidates(first, last):
            if port not in taken and _can_be_bound(port):
                until = 0.0 if holder else time.time() + UNBOUND_LEASE_S
                leases.append(PortReservation(port, until, holder, (start_time(holder) or 0) if holder else 0))
                return port
    raise OSError(f"no free port{'' if first is None else f' from {first}'} to {last}")


def give_back(port: int, *, directory: Path | None = None) -> None:
    """Before its time is over."""
    with _leases(directory or _directory()) as leases:
        leases[:] = [lease for lease in leases if lease.port != port]


def _candidates(first: int | None, last: int) -> Iterator[int]:
    """From `first` on; else from the best zone on, in each from anywhere, and never where an agent has put Ray."""
    if first is not None:
        yield from range(first, last + 1)
        return
    for zone in host_ports().zones():
        for runs in reversed(split_runs(zone.runs, OURS_FROM)):
            ports = [port for run in runs for port in run if port <= last]
            start = random.randrange(len(ports)) if ports else 0
            yield from (port for port in ports[start:] + ports[:start] if not is_in_a_block(port))


def _directory() -> Path:
    return Path(f"/tmp/muster-ports-{os.getuid()}")


@contextlib.contextmanager
def _leases(directory: Path) -> Iterator[list[PortReservation]]:
    """The live leases of this host, to be changed in place; nobody else reads or writes them meanwhile."""
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to somebody else")
    with open(os.open(directory / "leases.jsonl", os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        read = [_lease(line) for line in file.readall().splitlines()]
        leases = [lease for lease in read if lease is not None and lease.alive()]
        yield leases
        # Written over what is there and cut off after it: where a full disk refuses a new lease, the old ones stay.
        text = b"".join(json.dumps(asdict(lease)).encode() + b"\n" for lease in leases)
        written = 0
        while written < len(text):
            written += os.pwrite(file.fileno(), text[written:], written)
        file.truncate(len(text))


def _lease(line: bytes) -> PortReservation | None:
    """None for a line that is none: a full disk may have cut it short."""
    try:
        lease = PortReservation(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return lease if all(isinstance(value, (int, float)) for value in asdict(lease).values()) else None


def _can_be_bound(port: int) -> bool:
    """On all addresses of both families, without SO_REUSEADDR, which would call a port free that is not."""
    dual = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if dual else socket.AF_INET) as probe:
        try:
            if dual:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("::" if dual else "0.0.0.0", port))
        except OSError:
            return False
    return True
