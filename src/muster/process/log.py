"""Log files for the output of processes.

Without a size limit the process writes directly into the file. With one, its output is captured and rotated (see
capture.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TAIL_BYTES = 8192
LOG_MODE = 0o600  # output of programs may hold secrets
F_SETPIPE_SZ = 1031  # fcntl has no name for it before Python 3.10
PIPE_BYTES = 1 << 20  # buffer before a slow disk blocks the process: the maximum for unprivileged users


@dataclass(frozen=True)
class Log:
    """A file to append to. With `max_bytes` one process may use it at a time; `keep` old files stay (FILE.1, ...)."""

    path: str
    max_bytes: int | None = None
    keep: int = 1

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {self.max_bytes}")
        if self.keep < 0:
            raise ValueError(f"keep must be at least 0, not {self.keep}")

    def open(self) -> int:
        """Open the file for appending; a new one is readable only by its owner."""
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_MODE)

    def capture(self) -> dict[str, Any] | None:
        """Return the arguments for the supervisor's copier; None if the process writes directly."""
        if self.max_bytes is None:
            return None
        return {"path": os.path.abspath(self.path), "max_bytes": self.max_bytes, "keep": self.keep}

    def tail(self, max_bytes: int = TAIL_BYTES) -> str:
        """Return the last `max_bytes` of output, also from rotated files; empty if there is none."""
        parts: list[bytes] = []
        seen: set[int] = set()  # a file that is rotated meanwhile appears again under its next name
        wanted = max_bytes
        for number in range(self.keep + 1 if self.max_bytes is not None else 1):
            with contextlib.suppress(OSError), open(f"{self.path}.{number}" if number else self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if wanted and inode not in seen:
                    seen.add(inode)
                    file.seek(max(0, file.seek(0, os.SEEK_END) - wanted))
                    parts.append(file.read(wanted))
                    wanted -= len(parts[-1])
        return b"".join(reversed(parts)).decode(errors="replace")


def streams(given: Sequence[int | None]) -> list[int]:
    """Replace missing descriptors by /dev/null."""
    return [os.open(os.devnull, os.O_RDWR) if fd is None else fd for fd in given]


def logged_streams(given: Sequence[int | None], log: Log) -> list[int]:
    """Replace missing output descriptors by the log. For a captured log the pipe's read end and the file follow."""
    try:
        file = log.open()
    except OSError:
        for fd in given:
            if fd is not None:
                os.close(fd)
        raise
    if log.max_bytes is None:
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
