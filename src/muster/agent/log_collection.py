"""The schedule of the archives of Ray's logs: when each node may write, and for how long. Pure.

The failed node and the head (with the GCS) write first, even if little time is left. The others follow in groups, so
that a shared filesystem never gets a thousand archives at once; with too little time left they write none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from muster.lifecycle.config import FIRST_LEADER
from muster.lifecycle.events import RunOutcome

GROUP_NODES = 64  # nodes that write at the same time
GROUP_PAUSE_S = 0.5  # between groups
SHUTDOWN_S = 2.0  # reserved to report, publish and exit
MIN_WRITE_S = 2.0  # with less time than this, a node that did not fail does not begin
CYCLE_WRITE_S = 8.0  # the longest time that a cycle's logs may delay the next cycle
LEADERLESS_WRITE_S = 8.0  # the job script ends all tasks 10 s after the leader is lost


@dataclass(frozen=True)
class LogCollection:
    """The instructions for a node's logs in the leader's stop message."""

    failed: bool
    after: float  # seconds to wait
    seconds: float  # time to write; 0: write nothing

    def minus(self, spent: float) -> LogCollection:
        """Return a copy with the time to write reduced by the `spent` seconds."""
        return replace(self, seconds=max(0.0, self.seconds - spent))


def group_delay(node_index: int) -> float:
    """Return the seconds that this node waits for the groups before it."""
    return node_index // GROUP_NODES * GROUP_PAUSE_S


def run_ending(node_index: int, outcome: RunOutcome, seconds: float, leader: int = FIRST_LEADER) -> LogCollection:
    """Return the instructions at the end of the run, `seconds` before its deadline. Nonzero exit codes are failures."""
    failed, left = outcome.exit_code != 0, max(0.0, seconds - SHUTDOWN_S)
    if node_index in (outcome.node_index, leader):
        return LogCollection(failed, 0.0, left)
    after = group_delay(node_index)
    return LogCollection(failed, after, left - after if left >= after + MIN_WRITE_S else 0.0)


def cycle_ending(node_index: int) -> LogCollection:
    """Return the instructions at the end of a cycle: the next cycle, or a replacement, waits for this node."""
    after = group_delay(node_index)
    return LogCollection(True, after, max(0.0, CYCLE_WRITE_S - after))


def leaderless_ending(node_index: int) -> LogCollection:
    """Return the instructions for a node that has lost its leader."""
    after = group_delay(node_index)
    return LogCollection(True, after, max(0.0, LEADERLESS_WRITE_S - after))
