"""Messages between the engine and its processes: one packet each, which may carry descriptors.

Most are JSON. Those of the hot path are not: each page that a worker or an execution touches after a fork is copied
again for every program. Commands to workers and their reports are plain text; jobs are marshalled.
"""

from __future__ import annotations

import json
import marshal
import os
import socket
import struct
from typing import Any

from muster.process.memory_file import memory_file

PACKET = 1 << 16  # bytes; fits every kernel's default buffer; longer jobs are sent as a file in memory
DESCRIPTORS = 4
MARSHAL = 2  # a version that every Python reads
_ROOM = socket.CMSG_SPACE(4 * DESCRIPTORS)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)


def send(channel: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    send_bytes(channel, json.dumps(message).encode(), fds)


def send_bytes(channel: socket.socket, data: bytes, fds: tuple[int, ...]) -> None:
    socket.send_fds(channel, [data], fds)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message and its descriptors; None if the other side is gone."""
    data, fds = receive_bytes(channel)
    return (decoded(data) if data else None), fds


def receive_bytes(channel: socket.socket, size: int = PACKET) -> tuple[bytes, list[int]]:
    """Return the next packet and its descriptors; an empty packet if the other side is gone."""
    try:
        data, ancillary, _, _ = channel.recvmsg(size, _ROOM, _CLOSE_ON_EXEC)
    except ConnectionError:
        return b"", []
    fds: list[int] = []
    for _, _, packed in ancillary:
        fds += struct.unpack(f"{len(packed) // 4}i", packed[: len(packed) // 4 * 4])
    return data, fds


def decoded(data: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(data.decode())
    return message


def in_memory(parts: list[bytes]) -> int:
    """Return a sealed file in memory with the concatenated parts."""
    return memory_file("job", parts, sealed=True)


# -- jobs -----------------------------------------------------------------------------------------------------------


def send_job(channel: socket.socket, job: dict[str, Any], stdin: bytes) -> None:
    """Send a job. A long job, or one with input, is sent as a file, with a packet that holds only the job's length."""
    data = marshal.dumps(job, MARSHAL)
    if len(data) < PACKET and not stdin:
        channel.send(data)
        return
    fd = in_memory([data, stdin])
    try:
        send_bytes(channel, marshal.dumps(len(data), MARSHAL), (fd,))
    finally:
        os.close(fd)


def receive_job(channel: socket.socket) -> tuple[dict[str, Any] | None, int | None]:
    """Return the job (None if the server is gone), and a file whose rest is the job's input, if it has any."""
    data, fds = receive_bytes(channel)
    if not data:
        return None, None
    if not fds:
        return marshal.loads(data), None
    left, parts = marshal.loads(data), []
    while left:
        parts.append(os.read(fds[0], left))
        left -= len(parts[-1])
    return marshal.loads(b"".join(parts)), fds[0]
