"""Copy of rank 0's output in the driver's log, which users follow."""

from __future__ import annotations

import os

from muster.rundir import private_opener

CHUNK_BYTES = 1 << 20


class LogMirror:
    """Appends new data of one file to another. Not thread-safe."""

    def __init__(self, source: str, target: str) -> None:
        self._source, self._target = source, target
        self._copied = 0

    def copy(self) -> None:
        """Copy the data written since the last call; on a full disk raise OSError, and copy the rest next time."""
        try:
            source = os.open(self._source, os.O_RDONLY)
        except FileNotFoundError:
            return  # the process has not started yet
        try:
            target = private_opener(self._target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                while data := os.pread(source, CHUNK_BYTES, self._copied):
                    self._copied += os.write(target, data)
            finally:
                os.close(target)
        finally:
            os.close(source)
