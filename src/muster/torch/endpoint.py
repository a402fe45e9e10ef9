"""Whether the coordinator is to be in this process: is the endpoint's host this one, and is its port free?"""

from __future__ import annotations

import errno
import ipaddress
import socket

BACKLOG = 4096


def is_here(host: str) -> bool:
    """Whether one of the host's addresses is this machine's: only those can be bound."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def take_port(host: str, port: int) -> socket.socket | None:
    """A listener on the endpoint's port, or None where somebody has it: another launcher on this host was first.

    On all networks, as nodes may know the host by different addresses; for a loopback endpoint on that alone.
    """
    try:
        if _is_loopback(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        return socket.create_server(("0.0.0.0", port), backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True
