"""The speed of the node's processor and memory. The leader compares the nodes (`agent/leader/check_reports.py`)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from muster.agent.health.checks.finding import CheckedNode, Finding, passed

HASHED_BYTES, COPIED_BYTES = 8 << 20, 64 << 20
TRIALS = 5  # the fastest counts: another one may have been interrupted


def check_cpu(node: CheckedNode, threshold: float) -> Finding:
    data = bytes(HASHED_BYTES)
    return _fastest(lambda: hashlib.sha256(data).digest(), HASHED_BYTES)


def check_memory(node: CheckedNode, threshold: float) -> Finding:
    data = bytearray(COPIED_BYTES)
    return _fastest(lambda: bytes(data), COPIED_BYTES)


def _fastest(work: Callable[[], object], size: int) -> Finding:
    best = float("inf")
    for _ in range(TRIALS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    rate = size / best / 1e9
    return passed(f"{rate:.2f} GB/s", measured=rate)
