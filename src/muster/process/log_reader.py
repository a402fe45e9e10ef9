"""Read a log across its files (see log_segments.py), also while it is written."""

from __future__ import annotations

import contextlib
import os

from muster.process.fresh import refresh
from muster.process.log_segments import MIN_COMPLETE_BYTES, SEGMENT_COUNT, find_segments, segment_path

READ_BYTES = 1 << 20
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a link may lead anywhere, and a pipe would block


class LogReader:
    """Reads a log from a position on.

    The file is opened for each read: on a network filesystem a descriptor may go stale, and opening revalidates.
    """

    def __init__(self, path: str, position: int = 0) -> None:
        self.path, self.position = path, position
        self.dropped = 0  # bytes that were removed before they could be read, in all reads
        self._start: int | None = None  # of the file that has the position
        self._ends_line = True  # what was read last

    def read(self, max_bytes: int = READ_BYTES) -> bytes:
        """Return data from the position on; empty at the end. Data that was removed is counted and skipped."""
        if self._start is None:
            starts = find_segments(self.path)
            if not starts:
                return b""
            self._start = max((start for start in starts if start <= self.position), default=starts[0])
        data = self._read_file(max_bytes)
        if data or (data is not None and self.position - self._start < MIN_COMPLETE_BYTES):
            return data or b""
        return self._read_next(max_bytes)

    def _read_next(self, max_bytes: int) -> bytes:
        """Go on with the next file, if there is one."""
        assert self._start is not None
        starts = find_segments(self.path)
        later = [start for start in starts if start > self._start]
        if not later:
            return b""
        # The file is complete, since there is a later one; it may have grown before that was created.
        data = self._read_file(max_bytes)
        if data:
            return data
        is_before_gap = self._start == starts[0] and len(starts) >= SEGMENT_COUNT
        if data is not None and self.position < later[0] and not is_before_gap:
            return b""  # a network filesystem does not show its last bytes yet
        self._start = max((start for start in later if start <= self.position), default=later[0])
        self.dropped += max(0, self._start - self.position)
        self.position = max(self._start, self.position)
        return self._read_file(max_bytes) or b""

    def _read_file(self, max_bytes: int) -> bytes | None:
        """Read at the position; None if the file was removed."""
        assert self._start is not None
        try:
            file = os.open(segment_path(self.path, self._start), _OPEN_FLAGS)
        except OSError:
            return None
        try:
            refresh(file)
            data = os.pread(file, max_bytes, max(0, self.position - self._start))
        except OSError:
            return b""
        finally:
            _close(file)
        self.position += len(data)
        return data

    def read_with_notice(self, max_bytes: int = READ_BYTES) -> bytes:
        """Return data as `read`, with a line that says how much was dropped before it."""
        dropped = self.dropped
        data = self.read(max_bytes)
        if self.dropped > dropped:
            line_end = b"" if self._ends_line else b"\n"
            data = line_end + drop_notice(self.dropped - dropped) + data
        if data:
            self._ends_line = data.endswith(b"\n")
        return data


def _close(file: int) -> None:
    """Close a file that was only read. A network filesystem may report with `close` what another process wrote."""
    with contextlib.suppress(OSError):
        os.close(file)


def drop_notice(dropped: int) -> bytes:
    """Return the line that replaces removed output."""
    return f"muster: {dropped} bytes of output are not kept here, because of --log-limit\n".encode()


def log_end(path: str) -> tuple[int, int] | None:
    """Return the length of a log, with what was removed, and the time of its last change (ns); None if there is none.

    Opening makes network filesystems revalidate.
    """
    start = (find_segments(path) or [0])[-1]
    try:
        file = os.open(segment_path(path, start), _OPEN_FLAGS)
    except OSError:
        return None
    try:
        refresh(file)
        found = os.fstat(file)
    except OSError:
        return None
    finally:
        _close(file)
    return start + found.st_size, found.st_mtime_ns


def tail_bytes(path: str, max_bytes: int) -> bytes:
    """Return the last bytes of a log; empty where it cannot be read."""
    end = log_end(path)
    reader = LogReader(path, max(0, end[0] - max_bytes) if end is not None else 0)
    return b"".join(iter(reader.read, b""))[-max_bytes:] if max_bytes > 0 else b""


def tail_lines(path: str, lines: int = 12, max_bytes: int = 8192) -> list[str]:
    """Return the last lines of a log, from its last `max_bytes`; empty where it cannot be read."""
    found = tail_bytes(path, max_bytes).decode("utf-8", "replace").splitlines()
    return found[-lines:] if lines > 0 else []


def tail_position(path: str, lines: int, end: int | None = None, block_bytes: int = READ_BYTES) -> int:
    """Return the position at which the last `lines` lines before `end` begin (default: the end of the log).

    An incomplete last line counts as one.
    """
    found = log_end(path)
    end = end if end is not None else found[0] if found is not None else 0
    if lines < 1:
        return end
    for start in reversed(find_segments(path)):
        with contextlib.suppress(OSError), open(segment_path(path, start), "rb") as file:
            offset = min(os.fstat(file.fileno()).st_size, end - start)
            while offset > 0:
                begin = max(0, offset - block_bytes)
                data = os.pread(file.fileno(), offset - begin, begin)
                at = len(data) - (start + begin + len(data) == end)  # the last byte of the log ends its last line
                while (at := data.rfind(b"\n", 0, at)) >= 0:
                    lines -= 1
                    if not lines:
                        return start + begin + at + 1
                offset = begin
    return 0
