"""The rendezvous endpoint HOST:PORT: parse it, and find out whether this process can be the coordinator behind it."""

from __future__ import annotations

import errno
import ipaddress
import socket

LISTEN_BACKLOG = 4096  # all nodes of a large job may connect at once


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Parse HOST:PORT; an IPv6 address is in brackets. Raise ValueError for other texts.

    >>> parse_endpoint("n1:29400"), parse_endpoint("[fd00::1]:29400")
    (('n1', 29400), ('fd00::1', 29400))
    """
    host, _, port = endpoint.strip().rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535 or host.count("[") != host.count("]"):
        raise ValueError(f"--rdzv-endpoint {endpoint or '(none)'}: must be HOST:PORT, the same on every node")
    return host.strip("[]"), int(port)


def is_local(host: str) -> bool:
    """Return whether one of the host's addresses belongs to this machine: only those can be bound."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def bind_endpoint(host: str, port: int) -> socket.socket | None:
    """Return a listener on the endpoint's port, or None if another process on this host has bound it.

    It listens on all networks, as nodes may know the host by different addresses; for a loopback host only on that.
    """
    try:
        if is_loopback(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
        if socket.has_dualstack_ipv6():
            address = ("::", port)
            return socket.create_server(address, family=socket.AF_INET6, backlog=LISTEN_BACKLOG, dualstack_ipv6=True)
        return socket.create_server(("0.0.0.0", port), backlog=LISTEN_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host by this name."""
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
