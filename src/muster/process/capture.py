"""Write captured output to a log of several files. Part of the supervisor's program.

Output comes through a pipe, and a separate process (the copier) writes it to the file. So no output is lost when the
supervisor or the owner ends, and a hanging disk blocks neither of them. The copier ends when the pipe has no writers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time

from muster.process.log_segments import drop_middle, find_segments, segment_path

CHUNK = 1 << 18
POSITION_TRIES, POSITION_RETRY_S = 120, 0.5  # a server that restarts is gone for a minute
MAX_LINE_BYTES = 1 << 16  # a file grows by so much beyond its size to hold the rest of a line


class SegmentedLog:
    """Appends to a log and begins the next file when one is full; see log_segments.py.

    Programs write in blocks that end anywhere. An incomplete line is written at once, and its rest to the same file.
    """

    def __init__(self, fd: int, path: str, segment_bytes: int) -> None:
        """`fd` is the log's last file."""
        self._fd, self._path, self._segment_bytes = fd, path, segment_bytes
        self._start, self._size = _position(fd, path)
        self._in_line = False  # the last line is incomplete
        self._missing = 0  # bytes that could not be written

    def write(self, data: bytes) -> None:
        """Write data; a line is split only if it is longer than MAX_LINE_BYTES."""
        while data:
            size = self._fitting(data)
            if size:
                self._put(data[:size])
                data = data[size:]
            else:
                self._begin_next()

    def _fitting(self, data: bytes) -> int:
        """Return how much of the data belongs to this file; 0 if the next file begins with it."""
        room = max(0, self._segment_bytes - self._size)
        if len(data) <= room:
            return len(data)
        if lines := data.rfind(b"\n", 0, room) + 1:
            return lines
        if self._in_line or 2 * self._size < self._segment_bytes:
            room = max(0, self._segment_bytes + MAX_LINE_BYTES - self._size)
            return data.find(b"\n", 0, room) + 1 or min(len(data), room)
        return 0

    def _put(self, data: bytes) -> None:
        """Append to the file. On a full disk the output is dropped and counted."""
        self._size += len(data)
        self._in_line = not data.endswith(b"\n")
        try:
            if self._missing:
                self._write_all(f"\nmuster: {self._missing} bytes of output could not be written here\n".encode())
                self._missing = 0
            self._write_all(data)
        except OSError:
            self._missing += len(data)

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def _begin_next(self) -> None:
        """Begin the next file. If that fails, the old one grows until the next attempt."""
        self._size = 0
        with contextlib.suppress(OSError):
            found = os.fstat(self._fd)
            start = self._start + found.st_size
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            new = os.open(segment_path(self._path, start), flags, stat.S_IMODE(found.st_mode))
            old, self._fd, self._start = self._fd, new, start
            drop_middle(self._path)
            os.close(old)  # last: on a network filesystem it may fail


def _position(fd: int, path: str) -> tuple[int, int]:
    """Return where the log's open file begins, and its size. Without a copier the program would get SIGPIPE.

    Wait while the filesystem fails; after POSITION_TRIES write to the file as if it were empty.
    """
    for _ in range(POSITION_TRIES):
        with contextlib.suppress(OSError):
            return _start_of(fd, path), os.fstat(fd).st_size
        time.sleep(POSITION_RETRY_S)
    return 0, 0


def _start_of(fd: int, path: str) -> int:
    """Return the position at which the log's open file begins."""
    inode = os.fstat(fd).st_ino
    for start in reversed(find_segments(path)):
        with contextlib.suppress(OSError):
            if os.stat(segment_path(path, start)).st_ino == inode:
                return start
    return 0


def start_copier(source: int, fd: int, path: str, segment_bytes: int) -> int:
    """Fork a copier that writes data from `source` to the log; return its pid. The caller must have no threads."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)  # the handlers that do nothing stay installed
        close_all_but(source, fd)
        log = SegmentedLog(fd, path, segment_bytes)
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
