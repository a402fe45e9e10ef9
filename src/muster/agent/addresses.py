"""Which addresses this host has: all of them, since only a peer can tell which one it reaches."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

SIOCGIFADDR = 0x8915


def host_addresses() -> list[str]:
    """Every address of every interface that another host might reach: IPv4 first, loopback and link-local left out."""
    found = _ipv4_addresses() + _ipv6_addresses()
    return [a for a in found if not (ipaddress.ip_address(a).is_loopback or ipaddress.ip_address(a).is_link_local)]


def _ipv4_addresses() -> list[str]:
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # the interface has no IPv4 address
            addresses.append(socket.inet_ntoa(answer[20:24]))
    return addresses


def _ipv6_addresses() -> list[str]:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []
    return [str(ipaddress.IPv6Address(bytes.fromhex(row[0]))) for row in rows]
