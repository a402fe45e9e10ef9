"""Ask the server of a network filesystem for the attributes of an open file, past the client's cache.

A client may trust for a minute that a file has not grown. Reading stops at the size that it knows, so the last lines of
a log would be missing. `statx` can demand the server's answer; Python has no function for it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

AT_EMPTY_PATH, AT_STATX_FORCE_SYNC = 0x1000, 0x2000
STATX_BASIC_STATS = 0x7FF
STATX_BYTES = 256


def refresh(fd: int) -> None:
    """Update what the kernel knows about an open file. Does nothing where that is not possible."""
    statx = _statx()
    if statx is not None:
        statx(fd, b"", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, ctypes.create_string_buffer(STATX_BYTES))


@functools.cache
def _statx() -> Callable[..., Any] | None:
    """Return the C library's function; None before glibc 2.28."""
    try:
        function: Callable[..., Any] = ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return None
    return function
