"""A log that is rotated while it is written. Part of the supervisor's program.

What a process writes comes through a pipe, and a process of its own copies it to the file: neither the end of the
supervisor nor that of the owner loses a word, and a disk that hangs can hold up neither of them. It ends by itself when
nobody is left who could write.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat

CHUNK = 65536


class Rotating:
    """FILE is the newest; FILE.1, FILE.2, ... are older, and of these `keep` are kept.

    A line is written as far as it is known, and goes over to the next file when the rest of it does not fit: programs
    write in blocks, which end anywhere.
    """

    def __init__(self, fd: int, path: str, max_bytes: int, keep: int) -> None:
        self._fd, self._path, self._max_bytes, self._keep = fd, path, max_bytes, keep
        self._size = os.fstat(fd).st_size
        self._begun = 0  # bytes of a line at the file's end whose own end is not known yet
        self._missing = 0  # bytes that could not be written

    def write(self, data: bytes) -> None:
        """Lines stay whole where a file can hold them."""
        while data:
            room = max(0, self._max_bytes - self._size)
            part = data if len(data) <= room else data[: data.rfind(b"\n", 0, room) + 1]
            if not part and (self._size > self._begun or not room):
                self._rotate()
                continue
            part = part or data[:room]
            self._put(part)
            data = data[len(part) :]

    def _put(self, data: bytes) -> None:
        """A full disk costs output, never the process that writes it."""
        self._size += len(data)
        try:
            if self._missing:
                self._write_all(f"\nmuster: {self._missing} bytes of output could not be written here\n".encode())
                self._missing = 0
            self._write_all(data)
            self._begun = len(data) + (self._begun if b"\n" not in data else -data.rfind(b"\n") - 1)
        except OSError:
            self._missing += len(data)
            self._begun = 0

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def _rotate(self) -> None:
        """What cannot be rotated grows, until the next time."""
        try:
            line = self._begun_line()
            for number in range(self._keep, 0, -1):
                younger = f"{self._path}.{number - 1}" if number > 1 else self._path
                if os.path.exists(younger):
                    os.rename(younger, f"{self._path}.{number}")
            mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
            new = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, mode)
        except OSError:
            self._size = self._begun = 0
            return
        old, self._fd = self._fd, new
        self._size = self._begun = 0
        self._put(line)  # first: who reads meanwhile finds it twice, and never not at all
        with contextlib.suppress(OSError):
            if self._keep and line and not self._missing:
                os.ftruncate(old, os.fstat(old).st_size - len(line))
        os.close(old)

    def _begun_line(self) -> bytes:
        """What goes over to the next file: nothing when it is all that this one holds, or too long for a line."""
        if not 0 < self._begun < min(self._size, CHUNK):
            return b""
        with open(f"/proc/self/fd/{self._fd}", "rb") as file:
            file.seek(-self._begun, os.SEEK_END)
            return file.read()


def start_copying(source: int, fd: int, path: str, max_bytes: int, keep: int) -> int:
    """Fork a process that copies all that comes from `source`; returns its pid. For a process without threads."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)  # the handlers that do nothing stay
        close_all_but(source, fd)
        log = Rotating(fd, path, max_bytes, keep)
        while data := os.read(source, CHUNK):
            log.write(data)
        code = 0
    finally:
        os._exit(code)


def close_all_but(*kept: int) -> None:
    """The standard streams stay too. Others' ends of sockets and pipes must not be held open by us."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)
