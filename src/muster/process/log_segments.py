"""The files of one log. Part of the supervisor's program.

A log is a stream of bytes. Its first file has the name of the log; each further one is named after the position in the
stream at which it begins: driver.log, driver.log.000000134217728, ... No file is renamed, so a position denotes the
same byte for ever, and a reader needs only a position. Beyond SEGMENT_COUNT files the second one is removed: the
beginning and the end of the output are kept.
"""

from __future__ import annotations

import contextlib
import os

LOG_MODE = 0o600  # output of programs may hold secrets
SEGMENT_COUNT = 8
MIN_SEGMENT_BYTES = 1 << 16
MIN_COMPLETE_BYTES = MIN_SEGMENT_BYTES // 2  # a file that is followed by another one has at least so many
_DIGITS = 15


def segment_path(path: str, start: int) -> str:
    """Return the file of a log that begins at this position."""
    return f"{path}.{start:0{_DIGITS}d}" if start else path


def segment_start(path: str, name: str) -> int | None:
    """Return the position at which the file with this name begins; None if it is not one of the log."""
    log = os.path.basename(path)
    if name == log:
        return 0
    digits = name[len(log) + 1 :] if name.startswith(f"{log}.") else ""
    return int(digits) if len(digits) == _DIGITS and digits.isdigit() else None


def find_segments(path: str) -> list[int]:
    """Return the positions at which the existing files of a log begin, in order."""
    try:
        names = os.listdir(os.path.dirname(path) or ".")
    except OSError:
        return []
    return sorted(start for start in (segment_start(path, name) for name in names) if start is not None)


def drop_middle(path: str) -> None:
    """Remove files beyond SEGMENT_COUNT, from the second one on."""
    for start in find_segments(path)[1 : 1 - SEGMENT_COUNT]:
        with contextlib.suppress(OSError):
            os.unlink(segment_path(path, start))


def segment_bytes(limit: int) -> int:
    """Return the size of each file of a log that may have `limit` bytes."""
    return max(limit // SEGMENT_COUNT, MIN_SEGMENT_BYTES)


def open_newest(path: str) -> tuple[int, int]:
    """Open the last file of a log for appending; return the descriptor and the position at which the file begins."""
    start = (find_segments(path) or [0])[-1]
    return os.open(segment_path(path, start), os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_MODE), start
