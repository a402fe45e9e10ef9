"""Whether a run has a leader, and a node lives, judged by looks at the run directory. No I/O, no clock.

A member that has lost its leader records the end of the run only if no other node leads it. It sees that by the newest
status, which a leader publishes regularly. What it could not see is no evidence: a filesystem that hangs on one node
must not end a run that goes on elsewhere. So silence is counted in looks that were answered promptly, never in time:

    a look that                                     then the run
    failed, or took long                            is unknown: counting starts again
    shows an outcome                                is over
    shows a status that is newer than any before    goes on
    shows a new claim to a term                     may go on: counting starts again
    shows nothing new, the last of many in a row    has no leader

Before the first leader the first nodes of a run write heartbeats there, from the start of their prelude until they have
a leader. A heartbeat that does not change, in as many such looks, is of a node that is gone. A slow `--setup` is none:
the heartbeat goes on beside it. Of a node without a heartbeat nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from muster.election.membership import FENCE_S

LEADERLESS_AFTER_S = 25.0  # a leader that lives publishes every 10 s
SLOW_POLL_S = 5.0  # what a look that took longer shows may have been read before the leader's last publication

FIRST_LEADER_CANDIDATES = (
    8  # so many nodes after the first may lead the first term in its place; they and the first write heartbeats
)
STARTUP_HEARTBEAT_S = 2.0  # between two heartbeats of a node that has no leader yet
STARTUP_SILENCE_S = FENCE_S  # after which another node leads: harmless where the silent one comes after all
STARTUP_LOSS_S = 60.0  # after which the leader does not wait for a node any more: that may end the run


@dataclass(frozen=True)
class RunDirectoryView:
    """What one look showed: whether there is an outcome, the newest term with a status, its stamp, and the claims."""

    over: bool
    term: int  # -1: no leader has published a status
    stamp: object  # changes with every publication
    claims: frozenset[int]


class LeaderVerdict(Enum):
    """What the looks so far allow to say."""

    UNKNOWN = "look again"
    OVER = "the end is recorded"
    LED = "a leader has published"
    LEADERLESS = "nothing was published for QUIET_S of looks that were answered"


class LeaderSilence:
    """The looks of one member, taken `interval` seconds apart."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._seen: RunDirectoryView | None = None
        self._quiet = 0  # looks in a row that showed nothing new
        self._led = False

    def look(self, sight: RunDirectoryView | None, seconds: float) -> LeaderVerdict:
        """`sight` is None where the filesystem gave no answer; `seconds` is what the look took."""
        seen = self._seen
        if sight is not None and sight.over:
            return LeaderVerdict.OVER
        if sight is None or (seen is not None and sight.term < seen.term):  # a listing that lacks what was there
            self._quiet = 0
            return LeaderVerdict.UNKNOWN
        self._seen = sight
        self._led = self._led or (seen is not None and (sight.term, sight.stamp) != (seen.term, seen.stamp))
        if self._led:
            return LeaderVerdict.LED
        new_claim = seen is None or bool(sight.claims - seen.claims)
        self._quiet = 0 if new_claim or seconds > SLOW_POLL_S else self._quiet + 1
        return LeaderVerdict.LEADERLESS if self._quiet * self._interval >= LEADERLESS_AFTER_S else LeaderVerdict.UNKNOWN


class StartupHeartbeats:
    """What one node has seen of the heartbeats of others, in looks at least `interval` seconds apart."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._seen: dict[int, object] = {}
        self._quiet: dict[int, int] = {}  # looks in a row that showed the same heartbeat

    def look(self, heartbeats: Mapping[int, object], seconds: float) -> None:
        """`heartbeats` are those that could be read, by rank; `seconds` is what the look took."""
        answered = seconds <= SLOW_POLL_S
        same = {rank for rank, beat in heartbeats.items() if answered and self._seen.get(rank) == beat}
        self._quiet = {rank: self._quiet.get(rank, 0) + 1 if rank in same else 0 for rank in heartbeats}
        self._seen = dict(heartbeats)

    def silent(self, seconds: float = STARTUP_SILENCE_S) -> set[int]:
        """The nodes whose heartbeat has not changed for so long."""
        return {rank for rank, looks in self._quiet.items() if looks * self._interval >= seconds}
