"""Whether a run has a leader, judged by looks at its run directory. No I/O, no clock.

A member that has lost its leader records the end of the run only if no other node leads it. It sees that by the newest
status, which a leader publishes regularly. What it could not see is no evidence: a filesystem that hangs on one node
must not end a run that goes on elsewhere. So silence is counted in looks that were answered promptly, never in time:

    a look that                                     then the run
    failed, or took long                            is unknown: counting starts again
    shows an outcome                                is over
    shows a status that is newer than any before    goes on
    shows a new claim to a term                     may go on: counting starts again
    shows nothing new, the last of many in a row    has no leader
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

QUIET_S = 25.0  # a leader that lives publishes every 10 s
SLOW_LOOK_S = 5.0  # what a look that took longer shows may have been read before the leader's last publication


@dataclass(frozen=True)
class Sight:
    """What one look showed: whether there is an outcome, the newest term with a status, its stamp, and the claims."""

    over: bool
    term: int  # -1: no leader has published a status
    stamp: object  # changes with every publication
    claims: frozenset[int]


class Verdict(Enum):
    """What the looks so far allow to say."""

    UNKNOWN = "look again"
    OVER = "the end is recorded"
    LED = "a leader has published"
    LEADERLESS = "nothing was published for QUIET_S of looks that were answered"


class Silence:
    """The looks of one member, taken `interval` seconds apart."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._seen: Sight | None = None
        self._quiet = 0  # looks in a row that showed nothing new
        self._led = False

    def look(self, sight: Sight | None, seconds: float) -> Verdict:
        """`sight` is None where the filesystem gave no answer; `seconds` is what the look took."""
        seen = self._seen
        if sight is not None and sight.over:
            return Verdict.OVER
        if sight is None or (seen is not None and sight.term < seen.term):  # a listing that lacks what was there
            self._quiet = 0
            return Verdict.UNKNOWN
        self._seen = sight
        self._led = self._led or (seen is not None and (sight.term, sight.stamp) != (seen.term, seen.stamp))
        if self._led:
            return Verdict.LED
        new_claim = seen is None or bool(sight.claims - seen.claims)
        self._quiet = 0 if new_claim or seconds > SLOW_LOOK_S else self._quiet + 1
        return Verdict.LEADERLESS if self._quiet * self._interval >= QUIET_S else Verdict.UNKNOWN
