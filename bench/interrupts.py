"""Being told to end: benchmarks then leave through every `with` and `finally`, so that what they made goes too."""

from __future__ import annotations

import signal
import sys
from types import FrameType

INTERRUPTED = 130


def leave_on_signals() -> None:
    """SIGTERM and SIGHUP end the program as SIGINT does: by an exception."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _leave)


def _leave(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
