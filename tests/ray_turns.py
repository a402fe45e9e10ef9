"""Turns of tests that start Ray: not more at once than this machine has processors."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.1
_held = False  # by this process: a fixture may need Ray inside a test that has its turn


@contextmanager
def turn() -> Iterator[None]:
    """Wait for a turn among all test processes of this user, and have it inside the block."""
    global _held
    if _held:
        yield
        return
    lock = _wait()
    _held = True
    try:
        yield
    finally:
        _held = False
        os.close(lock)


def _wait() -> int:
    """Return a descriptor whose lock is the turn; the kernel releases it when a test process is killed."""
    places = [Path(tempfile.gettempdir(), f"tests-with-ray-{os.getuid()}-{n}") for n in range(os.cpu_count() or 1)]
    while True:
        for place in places:
            lock = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                os.close(lock)
        time.sleep(POLL_S)
