"""`muster.beat()`: a driver that prints nothing for long tells that it is alive. See --stall-timeout."""

from __future__ import annotations

import os
import time

EVERY_S = 1.0  # the file is on a shared filesystem: more often would only cost
_last = -EVERY_S


def beat() -> None:
    """Say that this run makes progress: anywhere in the job, as often as one likes. Outside a run it does nothing.

    From other languages: `touch "$MUSTER_BEAT_FILE"`.
    """
    global _last
    path, now = os.environ.get("MUSTER_BEAT_FILE"), time.monotonic()
    if path is None or now - _last < EVERY_S:
        return
    _last = now
    try:
        with open(path, "ab"):
            os.utime(path)
    except OSError:
        pass  # a run directory that is gone is not the driver's concern
