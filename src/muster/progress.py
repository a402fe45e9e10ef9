"""`muster.beat()`: a driver reports progress. See --stall-timeout and --no-progress-limit."""

from __future__ import annotations

import os
import time

from muster.sections import note_beat

BEAT_INTERVAL_S = 1.0  # shortest time between two writes: the file is on a shared filesystem
_last = -BEAT_INTERVAL_S


def beat(step: int | None = None) -> None:
    """Report that this run makes progress: from any process of the job, as often as you like. No-op outside a run.

    With a `step` that counts the work done, a restart that only repeats old work is not progress. Other languages can
    `touch "$MUSTER_BEAT_FILE"`, or write the step into it.
    """
    global _last
    note_beat(step)
    path, now = os.environ.get("MUSTER_BEAT_FILE"), time.monotonic()
    if path is None or now - _last < BEAT_INTERVAL_S:
        return
    _last = now
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            if step is not None:
                os.pwrite(file, b"%020d\n" % step, 0)  # fixed width: a reader never sees a mixture of two steps
            os.utime(path)
        finally:
            os.close(file)
    except OSError:
        pass  # a missing run directory must not fail the driver
