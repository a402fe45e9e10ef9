"""Heartbeat files of the first nodes, rewritten until a node has a leader; `election/leader_silence.py` judges them."""

from __future__ import annotations

from collections.abc import Iterable

from muster.rundir.paths import AttemptPaths
from muster.rundir.private_files import private_opener


def write_startup_heartbeat(attempt: AttemptPaths, node_index: int, text: str) -> None:
    """Replace the node's heartbeat; readers only compare it with the text before. Raises OSError."""
    with open(attempt.startup_heartbeat(node_index), "w", encoding="ascii", opener=private_opener) as file:
        file.write(f"{text}\n")


def read_startup_heartbeats(attempt: AttemptPaths, node_indexes: Iterable[int]) -> dict[int, str]:
    """Return the readable heartbeats by node index. Empty files are skipped: being written, or the disk is full."""
    found: dict[int, str] = {}
    for node_index in node_indexes:
        try:
            with open(attempt.startup_heartbeat(node_index), encoding="ascii", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        if text:
            found[node_index] = text
    return found
