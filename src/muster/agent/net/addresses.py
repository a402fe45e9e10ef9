"""Which of this host's addresses others may reach, best first. Only a peer can tell which one it really reaches."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Union

from muster.agent.net.netlink import Interface, interfaces

# Bridges of containers and virtual machines: they lead nowhere, and often have the same address on every host.
PRIVATE_BRIDGES = re.compile(r"docker\d|br-[0-9a-f]{12}|virbr|cni|podman|lxcbr|lxdbr|veth|cali|flannel")

Address = Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]


class NoAddress(Exception):
    """This host has no address as asked for; says what it has."""


def host_addresses(wanted: str | None = None, preferred: str | None = None) -> list[str]:
    """The addresses to be found at: those that `wanted` (--interface) means, in its order; else `preferred` first."""
    found = [str(address.ip) for address in choose(interfaces(), wanted)]
    return found if wanted else sorted(found, key=lambda address: address != preferred)


def own_address(wanted: str | None, proven: str) -> str:
    """What this node calls itself: the address of its connection to the leader, unless `wanted` excludes it.

    The kernel may have connected from a temporary address of IPv6; then the lasting one of the same network.
    """
    found = choose(interfaces(), wanted)
    names = [str(address.ip) for address in found]
    if proven in names:
        return proven
    peer = ipaddress.ip_address(proven)
    near = [str(address.ip) for address in found if peer in address.network]
    return [*near, *(names if wanted else []), proven][0]


def choose(host: Sequence[Interface], wanted: str | None) -> list[Address]:
    """Addresses that others might reach, best first; NoAddress if `wanted` means none of them."""
    usable = [(interface, address) for interface in host for address in _usable(interface)]
    if wanted is None:
        return [address for _, address in sorted(usable, key=lambda pair: _rank(*pair))]
    chosen: list[Address] = []
    for item in wanted.split(","):
        meant = [a for interface, a in usable if _means(item.strip(), interface.name, a) and a not in chosen]
        chosen += sorted(meant, key=lambda address: address.version)
    if not chosen:
        raise NoAddress(f"--interface {wanted} means no address of this host, which has {_listing(host)}")
    return chosen


def _usable(interface: Interface) -> list[Address]:
    """Loopback means the host itself, whatever 127. address its name has in /etc/hosts; link-local needs a zone."""
    parsed = [ipaddress.ip_interface(address) for address in interface.addresses]
    return [address for address in parsed if not (address.ip.is_loopback or address.ip.is_link_local)]


def _rank(interface: Interface, address: Address) -> tuple[bool, bool, int]:
    return bool(PRIVATE_BRIDGES.match(interface.name)), not interface.running, address.version


def _means(item: str, name: str, address: Address) -> bool:
    """A network means the addresses in it; an address, those in one network with it; all else, names."""
    try:
        if "/" in item:
            return address.ip in ipaddress.ip_network(item, strict=False)
        return ipaddress.ip_address(item) in address.network
    except ValueError:
        return fnmatchcase(name, item)


def _listing(host: Sequence[Interface]) -> str:
    """For people: what they may have meant."""
    told = []
    for interface in host:
        usable = _usable(interface)
        if usable or not any(ipaddress.ip_interface(address).ip.is_loopback for address in interface.addresses):
            told.append(f"{interface.name} ({', '.join(str(address.ip) for address in usable) or 'without address'})")
    return ", ".join(told) or "no network"


def address_towards(peer: str) -> str | None:
    """The address from which this host would speak to the peer; sends nothing.

    On the way to Slurm's launcher it is one of a network that Slurm itself has shown to connect the nodes.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(peer).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return None
