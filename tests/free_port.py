"""A port for a program of a test that no other program gets before that program binds it."""

from __future__ import annotations

import os

from muster.ports import socket_leases

_leases: list[socket_leases.PortLease] = []  # kept as long as the test process: no port is given twice


def free_port() -> int:
    """Return a port outside the range from which the kernel serves the other tests, leased against other agents."""
    lease = socket_leases.take(f"{os.getpid()} {len(_leases)}")
    lease.give()
    _leases.append(lease)
    return lease.number
