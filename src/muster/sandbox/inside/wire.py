"""Small messages between the server and what it started: JSON in one packet, descriptors beside it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from typing import Any

PACKET = 1 << 16  # what fits every kernel's default buffer; longer ones travel as a file in memory
DESCRIPTORS = 4
SEALS = 0x1 | 0x2 | 0x4 | 0x8  # F_SEAL_*: nobody can change it any more
F_ADD_SEALS = 1033


def send(channel: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    socket.send_fds(channel, [json.dumps(message).encode()], fds)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its descriptors; None when the other side is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(channel, PACKET, DESCRIPTORS)
    except ConnectionError:
        return None, []
    return (decoded(data) if data else None), list(fds)


def decoded(data: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(data.decode())
    return message


def in_memory(parts: list[bytes]) -> int:
    """A sealed file in memory that holds the parts, one after the other."""
    fd = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return fd


def read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(fd, size - len(data))
        if not part:
            break
        data += part
    return data
