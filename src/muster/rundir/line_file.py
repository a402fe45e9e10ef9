"""Append lines on a filesystem that may be full: lines that did not fit are written later."""

from __future__ import annotations

import os

from muster.rundir.private_files import PRIVATE_FILE_MODE

MAX_UNWRITTEN_BYTES = 4 << 20  # bounds the leader's memory while the disk is full; then the oldest lines are dropped


class LineFile:
    """A file of lines with one writer at a time. Lines of a failed `append` are kept for the next one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._unwritten = b""

    @property
    def behind(self) -> bool:
        """Whether lines wait for another `append`."""
        return bool(self._unwritten)

    def append(self, text: str) -> None:
        """Write the waiting lines, then `text`, which ends with a newline. Raises OSError if not all of it fitted.

        A partially written line is terminated and written again in full; readers skip the torn part.
        """
        self._unwritten += text.encode("utf-8", "replace")
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE_FILE_MODE)
            try:
                self._write(file)
            finally:
                os.close(file)
        finally:
            self._unwritten = _newest_lines(self._unwritten)

    def _write(self, file: int) -> None:
        end = b"\n" if _is_torn(file) else b""
        data, written = end + self._unwritten, 0
        try:
            while written < len(data):
                written += os.write(file, data[written:])
        finally:
            self._unwritten = data[max(len(end), data.rfind(b"\n", 0, written) + 1) :]


def _is_torn(file: int) -> bool:
    """Whether the file's last line lacks its newline, whichever process wrote it."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _newest_lines(data: bytes) -> bytes:
    if len(data) <= MAX_UNWRITTEN_BYTES:
        return data
    return data[data.find(b"\n", len(data) - MAX_UNWRITTEN_BYTES - 1) + 1 :]
