"""`muster.beat()`: a driver tells that it is alive and gets on. See --stall-timeout and --no-progress-limit."""

from __future__ import annotations

import os
import time

EVERY_S = 1.0  # the file is on a shared filesystem: more often would only cost
_last = -EVERY_S


def beat(step: int | None = None) -> None:
    """Say that this run makes progress: anywhere in the job, as often as one likes. Outside a run it does nothing.

    With a `step` that counts the work done, a restart that only repeats old work is no progress. From other languages:
    `touch "$MUSTER_BEAT_FILE"`, or the step written into it.
    """
    global _last
    path, now = os.environ.get("MUSTER_BEAT_FILE"), time.monotonic()
    if path is None or now - _last < EVERY_S:
        return
    _last = now
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            if step is not None:
                os.pwrite(file, b"%020d\n" % step, 0)  # always as long: nobody reads half of an older one
            os.utime(path)
        finally:
            os.close(file)
    except OSError:
        pass  # a run directory that is gone is not the driver's concern
