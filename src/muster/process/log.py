"""Log files for the output of processes.

Without a limit the process writes directly into the file. With one, its output is captured, and written to several
files of which the oldest but the first are removed (see capture.py and log_segments.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from muster.process.log_reader import tail_bytes
from muster.process.log_segments import open_newest, segment_bytes

TAIL_BYTES = 8192
F_SETPIPE_SZ = 1031  # fcntl has no name for it before Python 3.10
PIPE_BYTES = 1 << 20  # buffer before a slow disk blocks the process: the maximum for unprivileged users


@dataclass(frozen=True)
class Log:
    """A log to append to. With a limit (bytes of all its files; None or 0: no limit) one process may use it at a time.

    The limit is not exact: a file may hold the rest of a line, and there is no file smaller than MIN_SEGMENT_BYTES.
    """

    path: str
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"limit must be at least 0, not {self.limit}")

    def open(self) -> int:
        """Open the last file for appending; a new one is readable only by its owner."""
        return open_newest(self.path)[0]

    def capture(self) -> dict[str, Any] | None:
        """Return the arguments for the supervisor's copier; None if the process writes directly."""
        if not self.limit:
            return None
        return {"path": os.path.abspath(self.path), "segment_bytes": segment_bytes(self.limit)}

    def tail(self, max_bytes: int = TAIL_BYTES) -> str:
        """Return the last `max_bytes` of output; empty if there is none."""
        return tail_bytes(self.path, max_bytes).decode(errors="replace")


def streams(given: Sequence[int | None]) -> list[int]:
    """Replace missing descriptors by /dev/null."""
    return [os.open(os.devnull, os.O_RDWR) if fd is None else fd for fd in given]


def logged_streams(given: Sequence[int | None], log: Log, opened: int | None = None) -> list[int]:
    """Replace missing output descriptors by the log. For a captured log the pipe's read end and the file follow.

    `opened`: the log, if the caller has opened it; closed here like `given`.
    """
    try:
        file = log.open() if opened is None else opened
    except OSError:
        for fd in given:
            if fd is not None:
                os.close(fd)
        raise
    if not log.limit:
        output, copier_fds = file, []
    else:
        source, output = make_large_pipe()
        copier_fds = [source, file]
    stdin, *outputs = given
    found = streams([stdin, *(os.dup(output) if fd is None else fd for fd in outputs)])
    with contextlib.suppress(OSError):
        os.close(output)
    return found + copier_fds


def make_large_pipe() -> tuple[int, int]:
    """Create a pipe with a large buffer, unless the user has exhausted the kernel's limit for pipes."""
    read, write = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(write, F_SETPIPE_SZ, PIPE_BYTES)
    return read, write
