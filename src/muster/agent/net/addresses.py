"""Addresses of this host that other hosts may reach, best first. Only a connection proves which one they reach."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Union

from muster.agent.net.netlink import Interface, interfaces

# Bridges of containers and virtual machines: other hosts cannot reach them, and they often share one address.
PRIVATE_BRIDGES = re.compile(r"docker\d|br-[0-9a-f]{12}|virbr|cni|podman|lxcbr|lxdbr|veth|cali|flannel")

LOOPBACK = "127.0.0.1"

Address = Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]


class NoAddress(Exception):
    """No address of this host matches --interface; the message lists the existing ones."""


def host_addresses(wanted: str | None = None, preferred: str | None = None) -> list[str]:
    """Return the addresses to publish: those matching `wanted` (--interface), in its order; else `preferred` first."""
    found = [str(address.ip) for address in choose_addresses(interfaces(), wanted)]
    return found if wanted else sorted(found, key=lambda address: address != preferred)


def own_address(wanted: str | None, proven: str) -> str:
    """Return this node's address: that of its connection to the leader (`proven`), unless `wanted` excludes it.

    If the kernel connected from a temporary IPv6 address, the permanent one of the same network is returned.
    """
    found = choose_addresses(interfaces(), wanted)
    names = [str(address.ip) for address in found]
    if proven in names:
        return proven
    peer = ipaddress.ip_address(proven)
    near = [str(address.ip) for address in found if peer in address.network]
    return [*near, *(names if wanted else []), proven][0]


def choose_addresses(host: Sequence[Interface], wanted: str | None) -> list[Address]:
    """Return the addresses that other hosts might reach, best first; raise NoAddress if `wanted` matches none."""
    usable = [(interface, address) for interface in host for address in _usable(interface)]
    if wanted is None:
        return [address for _, address in sorted(usable, key=lambda pair: _node_index(*pair))]
    chosen: list[Address] = []
    for item in wanted.split(","):
        matching = [a for interface, a in usable if _matches(item.strip(), interface.name, a) and a not in chosen]
        chosen += sorted(matching, key=lambda address: address.version)
    if not chosen:
        raise NoAddress(f"--interface {wanted} matches no address of this host, which has {_describe(host)}")
    return chosen


def _usable(interface: Interface) -> list[Address]:
    """Return the interface's addresses without loopback and link-local ones (which need a zone)."""
    parsed = [ipaddress.ip_interface(address) for address in interface.addresses]
    return [address for address in parsed if not (address.ip.is_loopback or address.ip.is_link_local)]


def _node_index(interface: Interface, address: Address) -> tuple[bool, bool, int]:
    return bool(PRIVATE_BRIDGES.match(interface.name)), not interface.running, address.version


def _matches(item: str, name: str, address: Address) -> bool:
    """Match by network (the addresses in it), by address (those in the same network), or by interface name pattern."""
    try:
        if "/" in item:
            return address.ip in ipaddress.ip_network(item, strict=False)
        return ipaddress.ip_address(item) in address.network
    except ValueError:
        return fnmatchcase(name, item)


def _describe(host: Sequence[Interface]) -> str:
    """List the interfaces and their addresses for an error message."""
    described = []
    for interface in host:
        usable = _usable(interface)
        if usable or not any(ipaddress.ip_interface(address).ip.is_loopback for address in interface.addresses):
            addresses = ", ".join(str(address.ip) for address in usable)
            described.append(f"{interface.name} ({addresses or 'without address'})")
    return ", ".join(described) or "no network"


def address_towards(peer: str) -> str | None:
    """Return the source address of connections to the peer; nothing is sent.

    Towards Slurm's launcher, it belongs to a network that connects the nodes, since Slurm uses it.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(peer).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return None
