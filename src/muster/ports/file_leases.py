"""Ports of this node that no other caller gets: leases in one file per user and host, changed under a lock.

Two callers that both find a port free might both get it before either binds it. So each lease is recorded until its
holder has exited, or, without a known holder, for the time in which the port has to be bound. Programs of other users
do not read the file; the bind check, on all addresses of both families, protects against them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from muster.ports.guards import bind, is_in_a_block
from muster.ports.ranges import BLOCKS_FROM, LAST_PORT, host_ports, split_runs
from muster.process.proctree import start_time

LEASE_ROOT = Path("/tmp")
UNBOUND_LEASE_S = 300.0  # enough to start a program that binds the port


@dataclass(frozen=True)
class PortReservation:
    """A leased port; a line of the file."""

    port: int
    until: float  # time.time(); 0 if the lease ends with its holder
    holder: int = 0  # pid
    holder_began: int = 0  # the holder's start time, which distinguishes it from a later process with the same pid

    def alive(self) -> bool:
        return start_time(self.holder) == self.holder_began if self.holder else time.time() < self.until


def lease_port(
    first: int | None = None, *, last: int = LAST_PORT, holder: int = 0, directory: Path | None = None
) -> int:
    """Lease a free port, from `first` on or from the best zone of ranges.py; OSError if no port is free.

    The lease lasts while process `holder` is alive; without a holder, for UNBOUND_LEASE_S.
    """
    with _leases(directory or _directory()) as leases:
        taken = {lease.port for lease in leases}
        for port in _candidates(first, last):
            if port not in taken and _is_free(port):
                until = 0.0 if holder else time.time() + UNBOUND_LEASE_S
                leases.append(PortReservation(port, until, holder, (start_time(holder) or 0) if holder else 0))
                return port
    raise OSError(f"no free port{'' if first is None else f' from {first}'} to {last}")


def release_port(port: int, *, directory: Path | None = None) -> None:
    """End a lease before it expires."""
    with _leases(directory or _directory()) as leases:
        leases[:] = [lease for lease in leases if lease.port != port]


def _candidates(first: int | None, last: int) -> Iterator[int]:
    """Yield the ports from `first` on; else those of each zone from a random one on, without blocks held by agents."""
    if first is not None:
        yield from range(first, last + 1)
        return
    for zone in host_ports().zones():
        for runs in reversed(split_runs(zone.runs, BLOCKS_FROM)):
            ports = [port for run in runs for port in run if port <= last]
            start = random.randrange(len(ports)) if ports else 0
            yield from (port for port in ports[start:] + ports[:start] if not is_in_a_block(port))


def _is_free(port: int) -> bool:
    """Return whether the port can be bound, without SO_REUSEADDR, which would report some used ports as free."""
    probe = bind(port)
    if probe is not None:
        probe.close()
    return probe is not None


def _directory(root: Path = LEASE_ROOT) -> Path:
    """Return this user's directory on this host.

    Another user may occupy its name. Then it is a directory with an unpredictable name, which all processes of this
    user find by its owner.
    """
    usual = root / f"muster-ports-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        usual.mkdir(mode=0o700)
    if _is_own(usual):
        return usual
    pattern = f"{usual.name}-*"
    if not any(map(_is_own, root.glob(pattern))):
        tempfile.mkdtemp(prefix=f"{usual.name}-", dir=root)
    return min(path for path in root.glob(pattern) if _is_own(path))  # of two created at the same time, the same one


def _is_own(directory: Path) -> bool:
    try:
        info = os.lstat(directory)
    except OSError:  # removed meanwhile
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()


@contextlib.contextmanager
def _leases(directory: Path) -> Iterator[list[PortReservation]]:
    """Yield the live leases of this host, to be changed in place, under an exclusive lock."""
    directory.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(directory):
        raise PermissionError(f"{directory} belongs to another user")
    with open(os.open(directory / "leases.jsonl", os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        read = [_lease(line) for line in file.readall().splitlines()]
        leases = [lease for lease in read if lease is not None and lease.alive()]
        yield leases
        # Overwritten in place, then truncated: if a full disk refuses a new lease, the old ones remain.
        text = b"".join(json.dumps(asdict(lease)).encode() + b"\n" for lease in leases)
        written = 0
        while written < len(text):
            written += os.pwrite(file.fileno(), text[written:], written)
        file.truncate(len(text))


def _lease(line: bytes) -> PortReservation | None:
    """Parse a line; None for an invalid one, which a full disk may have cut short."""
    try:
        lease = PortReservation(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return lease if all(isinstance(value, (int, float)) for value in asdict(lease).values()) else None
