"""The last lines of log files, for error messages."""

from __future__ import annotations

import os

from muster.rundir.paths import AttemptPaths


def tail_of(path: str, lines: int, max_bytes: int = 8192) -> list[str]:
    """Return the last lines of a file, from its last `max_bytes`; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def node_tail(attempt: AttemptPaths, node_index: int, lines: int = 12) -> list[str]:
    """Return the last lines of a node's log."""
    return tail_of(attempt.node_log(node_index), lines)
