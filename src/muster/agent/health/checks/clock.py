"""The node's clock, compared with the time that the server of the run directory gives to a new file."""

from __future__ import annotations

import os
import tempfile
import time

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed

STAMP_GRANULARITY_S = 1.0  # of the times of some filesystems


def check_clock(node: CheckedNode, threshold: float) -> Finding:
    before = time.time()
    with tempfile.TemporaryFile(dir=node.run_dir) as file:
        file.write(b"\0")
        file.flush()
        os.fsync(file.fileno())  # else a network filesystem shows the node's own time
        stamp = os.fstat(file.fileno()).st_mtime
    return judge_clock(before, stamp, time.time(), threshold)


def judge_clock(before: float, stamp: float, after: float, most: float) -> Finding:
    """Judge the time of a file that was written between `before` and `after`. All in seconds since the epoch."""
    offset = max(before - STAMP_GRANULARITY_S - stamp, stamp - after, 0.0)
    if offset > most:
        return failed(f"the clock differs from that of the run directory's server by {offset:.1f} s")
    return passed(f"within {offset:.1f} s")
