"""Messages between the server and what it started: one packet each, descriptors beside it.

Most are JSON. Those of the hot path are not: whatever a worker or an execution touches after a fork is copied, page by
page, for every program anew. Orders to workers and their reports are a few words; jobs are marshalled.
"""

from __future__ import annotations

import json
import marshal
import os
import socket
import struct
from typing import Any

from muster.process.memory_file import memory_file

PACKET = 1 << 16  # what fits every kernel's default buffer; longer jobs travel as a file in memory
DESCRIPTORS = 4
MARSHAL = 2  # a format that every Python reads
_ROOM = socket.CMSG_SPACE(4 * DESCRIPTORS)
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)


def send(channel: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    send_bytes(channel, json.dumps(message).encode(), fds)


def send_bytes(channel: socket.socket, data: bytes, fds: tuple[int, ...]) -> None:
    socket.send_fds(channel, [data], fds)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its descriptors; None when the other side is gone."""
    data, fds = receive_bytes(channel)
    return (decoded(data) if data else None), fds


def receive_bytes(channel: socket.socket, size: int = PACKET) -> tuple[bytes, list[int]]:
    """The next packet and its descriptors; an empty one when the other side is gone."""
    try:
        data, beside, _, _ = channel.recvmsg(size, _ROOM, _CLOSE_ON_EXEC)
    except ConnectionError:
        return b"", []
    fds: list[int] = []
    for _, _, packed in beside:
        fds += struct.unpack(f"{len(packed) // 4}i", packed[: len(packed) // 4 * 4])
    return data, fds


def decoded(data: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(data.decode())
    return message


def in_memory(parts: list[bytes]) -> int:
    """A sealed file in memory that holds the parts, one after the other."""
    return memory_file("job", parts, sealed=True)


# -- jobs -----------------------------------------------------------------------------------------------------------


def send_job(channel: socket.socket, job: dict[str, Any], stdin: bytes) -> None:
    """Long ones, and input, go in a file beside a packet that has the length of the job alone."""
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
    """The job (None: the server is gone), and the file that its input is the rest of, if there is any."""
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
