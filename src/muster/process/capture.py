"""Write captured output to a rotated log. Part of the supervisor's program.

Output comes through a pipe, and a separate process (the copier) writes it to the file. So no output is lost when the
supervisor or the owner ends, and a hanging disk blocks neither of them. The copier ends when the pipe has no writers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat

CHUNK = 65536


class RotatingLog:
    """FILE is the newest; FILE.1, FILE.2, ... are older, and `keep` of these are kept.

    Programs write in blocks that end anywhere. An incomplete line is written at once, and moved to the next file if the
    rest of it does not fit.
    """

    def __init__(self, fd: int, path: str, max_bytes: int, keep: int) -> None:
        self._fd, self._path, self._max_bytes, self._keep = fd, path, max_bytes, keep
        self._size = os.fstat(fd).st_size
        self._begun = 0  # bytes of an incomplete line at the end of the file
        self._missing = 0  # bytes that could not be written

    def write(self, data: bytes) -> None:
        """Write data; a line is split only if it is longer than a file."""
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
        """Append to the file. On a full disk the output is dropped and counted."""
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
        """Start a new file. If that fails, the old one grows until the next attempt."""
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
        self._put(line)  # before it is removed from the old file: readers may see it twice, but never miss it
        with contextlib.suppress(OSError):
            if self._keep and line and not self._missing:
                os.ftruncate(old, os.fstat(old).st_size - len(line))
        with contextlib.suppress(OSError):
            os.close(old)

    def _begun_line(self) -> bytes:
        """Return the incomplete line to move to the next file; empty if it fills this one, or is too long."""
        if not 0 < self._begun < min(self._size, CHUNK):
            return b""
        with open(f"/proc/self/fd/{self._fd}", "rb") as file:
            file.seek(-self._begun, os.SEEK_END)
            return file.read()


def start_copier(source: int, fd: int, path: str, max_bytes: int, keep: int) -> int:
    """Fork a copier that writes data from `source` to the log; return its pid. The caller must have no threads."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)  # the handlers that do nothing stay installed
        close_all_but(source, fd)
        log = RotatingLog(fd, path, max_bytes, keep)
        while data := os.read(source, CHUNK):
            log.write(data)
        code = 0
    finally:
        os._exit(code)


def close_all_but(*kept: int) -> None:
    """Close all descriptors but the standard streams and `kept`, so that no pipe or socket is held open."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(fd)
