"""This host's network interfaces and addresses, read from the kernel over netlink, as `ip address` does."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

RTM_GETLINK, RTM_GETADDR = 18, 22
REQUEST_DUMP = 0x301
ERROR, DONE = 2, 3
IFF_RUNNING = 0x40
IFLA_IFNAME = 3
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
# Flags of IPv6 addresses that must not be used: temporary (they may expire during a run), duplicate,
# deprecated, tentative. The first flag has another, harmless meaning in IPv4.
UNUSABLE_FLAGS = 0x01 | 0x08 | 0x20 | 0x40
HEADER, MESSAGE, ATTRIBUTE = struct.Struct("=IHHII"), 16, struct.Struct("=HH")


@dataclass(frozen=True)
class Interface:
    """A network interface with its permanent addresses and their prefix lengths."""

    name: str
    running: bool  # up, and with a carrier
    addresses: tuple[str, ...]  # as in 10.1.0.7/16


def interfaces() -> list[Interface]:
    """Return the interfaces of this host in the kernel's order."""
    addresses: dict[int, list[str]] = {}
    for message in _dump(RTM_GETADDR):
        family, prefix, _, _, index = struct.unpack_from("=BBBBI", message)
        attributes = _attributes(message, 8)
        # A point-to-point link has two addresses; the local one is this host's.
        raw = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
        flags = struct.unpack("=I", attributes.get(IFA_FLAGS, bytes(4)))[0]
        if raw and not (family == socket.AF_INET6 and flags & UNUSABLE_FLAGS):
            addresses.setdefault(index, []).append(f"{ipaddress.ip_address(raw)}/{prefix}")
    found = []
    for message in _dump(RTM_GETLINK):
        index, flags = struct.unpack_from("=II", message, 4)
        name = _attributes(message, MESSAGE)[IFLA_IFNAME].rstrip(b"\0").decode(errors="replace")
        found.append(Interface(name, bool(flags & IFF_RUNNING), tuple(addresses.get(index, ()))))
    return found


def _dump(kind: int) -> Iterator[bytes]:
    """Yield the kernel's answers without their headers."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as netlink:
        netlink.send(HEADER.pack(HEADER.size + MESSAGE, kind, REQUEST_DUMP, 1, 0) + bytes(MESSAGE))
        while True:
            answer = netlink.recv(1 << 16)
            while answer:
                length, type_, *_ = HEADER.unpack_from(answer)
                if type_ == DONE:
                    return
                if type_ == ERROR:
                    raise OSError(-struct.unpack_from("=i", answer, HEADER.size)[0], "the kernel lists no interfaces")
                yield answer[HEADER.size : length]
                answer = answer[_aligned(length) :]


def _attributes(message: bytes, start: int) -> dict[int, bytes]:
    found = {}
    while start + ATTRIBUTE.size <= len(message):
        length, kind = ATTRIBUTE.unpack_from(message, start)
        found[kind] = message[start + ATTRIBUTE.size : start + length]
        start += max(_aligned(length), ATTRIBUTE.size)
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3
