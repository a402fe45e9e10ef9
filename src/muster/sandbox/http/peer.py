"""The user whose process is at the other end of a connection on loopback, from the kernel (sock_diag)."""

from __future__ import annotations

import socket
import struct
from typing import Any

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ANY_STATE, NO_COOKIE = 0xFFFFFFFF, 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_ID = struct.Struct("!HH16s16sIII")  # ports, addresses, interface, cookie
_UID_OFFSET = _HEADER.size + 4 + _ID.size + 12
UNKNOWN = -1
TIMEOUT_S = 0.1  # the kernel answers at once


def user_of_peer(own: tuple[Any, ...], peer: tuple[Any, ...]) -> int:
    """Return the user id of the socket at `peer` that is connected to our address `own`; UNKNOWN if it is not found."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    try:
        addresses = [socket.inet_pton(family, one[0]).ljust(16, b"\0") for one in (peer, own)]
        wanted = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, ANY_STATE)
        wanted += _ID.pack(peer[1], own[1], *addresses, 0, NO_COOKIE, NO_COOKIE)
        header = _HEADER.pack(_HEADER.size + len(wanted), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as channel:
            channel.settimeout(TIMEOUT_S)
            channel.send(header + wanted)
            answer = channel.recv(4096)
    except (OSError, ValueError):
        return UNKNOWN
    if len(answer) < _UID_OFFSET + 4 or _HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return UNKNOWN
    found: int = struct.unpack_from("=I", answer, _UID_OFFSET)[0]
    return found
