"""Where a process's output goes, and how it is read from its end.

Without a limit the process writes into the file itself: nothing stands in between. With one, its output is captured
and rotated (see capture.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TAIL_BYTES = 8192
F_SETPIPE_SZ = 1031  # fcntl has no name for it before Python 3.10
PIPE_BYTES = 1 << 20  # what the disk may be behind before the process has to wait: the most that anybody may ask for


@dataclass(frozen=True)
class Log:
    """Appended to. One with a limit is one process's at a time; `keep` files before it stay, as FILE.1, FILE.2 ..."""

    path: str
    max_bytes: int | None = None
    keep: int = 1

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {self.max_bytes}")
        if self.keep < 0:
            raise ValueError(f"keep must be at least 0, not {self.keep}")

    def open(self) -> int:
        """A descriptor that appends."""
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def capture(self) -> dict[str, Any] | None:
        """What the supervisor is to know of it; None when there is nothing to capture."""
        if self.max_bytes is None:
            return None
        return {"path": os.path.abspath(self.path), "max_bytes": self.max_bytes, "keep": self.keep}

    def tail(self, max_bytes: int = TAIL_BYTES) -> str:
        """The last that was written, from as many files as it takes; empty when there is none."""
        parts: list[bytes] = []
        seen: set[int] = set()  # a file that is rotated while we look is met again under its next name
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
    """What is given; the rest is /dev/null."""
    return [os.open(os.devnull, os.O_RDWR) if fd is None else fd for fd in given]


def logged_streams(given: Sequence[int | None], log: Log) -> list[int]:
    """The same with output to the log. Of a captured one the pipe's other end and the file follow."""
    try:
        file = log.open()
    except OSError:
        for fd in given:
            if fd is not None:
                os.close(fd)
        raise
    if log.max_bytes is None:
        output, behind = file, []
    else:
        source, output = wide_pipe()
        behind = [source, file]
    stdin, *outputs = given
    found = streams([stdin, *(os.dup(output) if fd is None else fd for fd in outputs)])
    os.close(output)
    return found + behind


def wide_pipe() -> tuple[int, int]:
    """A pipe that holds much, where the user has not used up what is allowed."""
    read, write = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(write, F_SETPIPE_SZ, PIPE_BYTES)
    return read, write
