"""Signal handling of benchmarks: they exit through every `with` and `finally`, which clean up."""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 130


def leave_on_signals() -> None:
    """Make SIGTERM and SIGHUP raise an exception, as SIGINT does."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _leave)


def _leave(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
