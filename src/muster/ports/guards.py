"""Sockets that hold ports: a bound port, a name for a single port, and names for the cells of a block.

A cell is CELL_SIZE ports that begin at a multiple of CELL_SIZE. An agent that acquires a block of ports binds a name
for each of its cells in the abstract namespace of Unix sockets. That has the same scope as the ports (one network
namespace, all users), so blocks of different sizes never overlap even before their ports are bound.
"""

from __future__ import annotations

import socket

CELL_SIZE = 25  # ports: small enough that 1024-1199 has 7 cells, large enough that Ray's 1000 take 40 descriptors


def bind(port: int, reuse: bool = False) -> socket.socket | None:
    """Return a socket bound to the port on all addresses of both families (Ray listens on either); None if it is taken.

    With `reuse`, as most servers bind, only a listener is in the way; without it, also a connection in TIME_WAIT.
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


def hold_name(name: str) -> socket.socket | None:
    """Return a socket that holds a name in the abstract namespace until it is closed; None if the name is taken."""
    guard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        guard.bind(f"\0{name}")
        return guard
    except OSError:
        guard.close()
        return None


def lease_name(port: int) -> str:
    """Return the abstract name that is held while a single port is leased to a service."""
    return f"muster-port-{port}"


def cells(block: range) -> range:
    """Return the numbers of the cells that are entirely in a block.

    >>> cells(range(100, 150)), cells(range(110, 160))
    (range(4, 6), range(5, 6))
    """
    return range(-(-block.start // CELL_SIZE), block.stop // CELL_SIZE)


def hold_cells(block: range) -> list[socket.socket] | None:
    """Return sockets that hold the cells of a block until they are closed; None if another block has one of them."""
    held: list[socket.socket] = []
    for cell in cells(block):
        one = hold_name(f"muster-cell-{cell}")
        if one is None:
            for other in held:
                other.close()
            return None
        held.append(one)
    return held


def is_in_a_block(port: int) -> bool:
    """Return whether an agent on this host holds the port's cell."""
    start = port // CELL_SIZE * CELL_SIZE
    held = hold_cells(range(start, start + CELL_SIZE))
    for one in held or ():
        one.close()
    return held is None
