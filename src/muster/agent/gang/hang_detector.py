"""Which process of a node's part in a gang has hung: it neither writes nor beats for longer than it may."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.agent.leader.stall import StallDetector


@dataclass(frozen=True)
class SilentRank:
    """A process without a sign of life, by its number on the node, and for how many seconds there was none."""

    local: int
    seconds: float


class HangDetector:
    """Looked at regularly, off the event loop."""

    def __init__(self, timeout: float, logs: Mapping[int, str], directory: str) -> None:
        self._stalls = {local: StallDetector(timeout, log, beat_file(directory, local)) for local, log in logs.items()}

    def look(self, running: Collection[int], now: float) -> SilentRank | None:
        """Of the processes that still run, the one that has been silent longest, if that is too long."""
        silent = [local for local in running if self._stalls[local].poll(now)]
        if not silent:
            return None
        longest = min(silent, key=lambda local: self._stalls[local].since)
        return SilentRank(longest, now - self._stalls[longest].since)


def beat_file(directory: str, local: int) -> str:
    """What `muster.beat()` of this process touches: on the node's own disk, where that costs nobody anything."""
    return os.path.join(directory, f"beat-{local}")
