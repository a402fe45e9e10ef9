"""Storage: whether data can be written and read again, and how long that takes."""

from __future__ import annotations

import os
import tempfile
import time

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed

TRIAL_BYTES = 4 << 20


def check_local(node: CheckedNode, threshold: float) -> Finding:
    return try_storage(node.temp_dir, threshold)


def check_shared(node: CheckedNode, threshold: float) -> Finding:
    return try_storage(node.run_dir, threshold)


def try_storage(directory: str, most: float) -> Finding:
    """Write a file without a name, flush it to the storage, and read it. `most`: seconds. Raises OSError."""
    data, began = os.urandom(TRIAL_BYTES), time.monotonic()
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(
            file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED
        )  # read it from the storage, where that is possible
        file.seek(0)
        intact = file.read() == data
    return judge_trial(directory, intact, time.monotonic() - began, most)


def judge_trial(directory: str, intact: bool, seconds: float, most: float) -> Finding:
    if not intact:
        return failed(f"{directory} returned other data than was written")
    if seconds > most:
        return failed(
            f"{directory} needed {seconds:.1f} s to write and read {TRIAL_BYTES >> 20} MiB, more than {most:g} s"
        )
    return passed(f"{seconds:.3f} s")
