"""Detection of hung gang processes: those without output and without `muster.beat()` for longer than the timeout."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.agent.health.stall import StallDetector


@dataclass(frozen=True)
class SilentRank:
    """The local rank of a hung process, and the seconds since its last output or beat."""

    local: int
    seconds: float


class HangDetector:
    """Watches the log and the beat file of every process of a node. `poll` reads files: call it off the event loop."""

    def __init__(self, timeout: float, logs: Mapping[int, str], directory: str) -> None:
        self._stalls = {local: StallDetector(timeout, log, beat_file(directory, local)) for local, log in logs.items()}

    def poll(self, running: Collection[int], now: float) -> SilentRank | None:
        """Return the running process that has been silent for longest, if that exceeds the timeout."""
        silent = [local for local in running if self._stalls[local].poll(now)]
        if not silent:
            return None
        longest = min(silent, key=lambda local: self._stalls[local].since)
        return SilentRank(longest, now - self._stalls[longest].since)


def beat_file(directory: str, local: int) -> str:
    """Return the file that `muster.beat()` touches: on the node's disk, to spare the shared filesystem."""
    return os.path.join(directory, f"beat-{local}")
