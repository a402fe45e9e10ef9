"""When a node may write its archive of Ray's logs, and for how long. Pure.

The node that failed, and the head with its GCS, go first and need no spare time. The others follow in groups, so that a
shared filesystem never gets a thousand archives in one instant; where little time is left they write none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from muster.lifecycle.config import FIRST_LEADER
from muster.lifecycle.events import RunOutcome

AT_ONCE = 64  # nodes of one group
PAUSE_S = 0.5  # between groups
SPARE_S = 2.0  # to report, publish and leave
LEAST_S = 2.0  # with less than this a node that did not fail does not begin
CYCLE_S = 8.0  # the longest that a cycle's logs may hold the next one up
LEADERLESS_S = 8.0  # the job script ends what is left 10 s after a lost leader


@dataclass(frozen=True)
class LogCollection:
    """What a node is told when it is to stop."""

    failed: bool
    after: float
    seconds: float  # 0: write nothing

    def after_all(self, spent: float) -> LogCollection:
        """The same with what else had to end first taken off."""
        return replace(self, seconds=max(0.0, self.seconds - spent))


def turn(rank: int) -> float:
    """Seconds that this node waits for the groups before its own."""
    return rank // AT_ONCE * PAUSE_S


def ending(rank: int, outcome: RunOutcome, seconds: float, leader: int = FIRST_LEADER) -> LogCollection:
    """For a node that is stopped with `seconds` left before everything must be over. Anything but 0 is a failure."""
    failed, left = outcome.exit_code != 0, max(0.0, seconds - SPARE_S)
    if rank in (outcome.rank, leader):
        return LogCollection(failed, 0.0, left)
    after = turn(rank)
    return LogCollection(failed, after, left - after if left >= after + LEAST_S else 0.0)


def cycle_ending(rank: int) -> LogCollection:
    """For a node whose part in a run that goes on is over: the next cycle, or a spare, waits for it."""
    after = turn(rank)
    return LogCollection(True, after, max(0.0, CYCLE_S - after))


def leaderless(rank: int) -> LogCollection:
    """For a node whose leader is gone: nobody else can tell it."""
    after = turn(rank)
    return LogCollection(True, after, max(0.0, LEADERLESS_S - after))
