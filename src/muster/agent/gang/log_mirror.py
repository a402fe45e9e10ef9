"""Rank 0's output in the driver's log, which is the one that everybody follows."""

from __future__ import annotations

import os

CHUNK = 1 << 20


class LogMirror:
    """Copies what is new in one file to the end of another. Called off the event loop, by one at a time."""

    def __init__(self, source: str, target: str) -> None:
        self._source, self._target = source, target
        self._copied = 0

    def copy(self) -> None:
        """Everything that has come since the last time; on a full disk as much as fits, the rest next time."""
        try:
            source = os.open(self._source, os.O_RDONLY)
        except FileNotFoundError:
            return  # the process has not begun yet
        try:
            target = os.open(self._target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                while data := os.pread(source, CHUNK, self._copied):
                    self._copied += os.write(target, data)
            finally:
                os.close(target)
        finally:
            os.close(source)
