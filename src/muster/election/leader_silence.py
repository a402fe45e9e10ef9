"""Whether a run has a leader and a node is alive, judged by polls of the run directory. No I/O, no clock.

A member that has lost its leader records the end of the run only if no other node leads it. Leaders publish a status
regularly, so a run without a new status has no leader. A failed poll is no evidence: a filesystem that hangs on one
node must not end a run that continues elsewhere. Silence is therefore counted in polls that were answered promptly:

    a poll that                                      means that the run
    failed, or took long                             is unknown: counting starts again
    shows an outcome                                 is over
    shows a status that is newer than any before     is led
    shows a new claim to a term                      may be led: counting starts again
    shows nothing new, the last of many in a row     has no leader

Before the run has a leader, its first nodes write heartbeats to the run directory, from the start of their prelude. A
node whose heartbeat does not change for as many polls is gone. A slow `--setup` does not stop the heartbeat. Nothing is
known about a node without a heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from muster.election.timing import FENCE_S

LEADERLESS_AFTER_S = 25.0  # a live leader publishes every 10 s
SLOW_POLL_S = 5.0  # the result of a slower poll may have been read before the leader's last publication

FIRST_LEADER_CANDIDATES = 8  # nodes after the first that may lead the first term; they and the first write heartbeats
STARTUP_HEARTBEAT_S = 2.0  # between two heartbeats of a node that has no leader yet
STARTUP_SILENCE_S = FENCE_S  # after which another node leads: harmless if the silent one starts after all
STARTUP_LOSS_S = 60.0  # after which the leader stops waiting for a node: that may end the run


@dataclass(frozen=True)
class RunDirectoryView:
    """The result of one poll: whether there is an outcome, the newest term with a status, its stamp, and the claims."""

    over: bool
    term: int  # -1: no leader has published a status
    stamp: object  # changes with every publication
    claims: frozenset[int]


class LeaderVerdict(Enum):
    """The conclusion from the polls so far."""

    UNKNOWN = "poll again"
    OVER = "the end is recorded"
    LED = "a leader has published"
    LEADERLESS = "nothing was published during LEADERLESS_AFTER_S of answered polls"


class LeaderSilence:
    """Judges the polls of one member, made `interval` seconds apart."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last_view: RunDirectoryView | None = None
        self._unchanged = 0  # consecutive polls without news
        self._led = False

    def observe(self, view: RunDirectoryView | None, seconds: float) -> LeaderVerdict:
        """Judge one poll. `view` is None if the filesystem did not answer; `seconds` is the duration of the poll."""
        last = self._last_view
        if view is not None and view.over:
            return LeaderVerdict.OVER
        if view is None or (last is not None and view.term < last.term):  # a stale directory listing
            self._unchanged = 0
            return LeaderVerdict.UNKNOWN
        self._last_view = view
        self._led = self._led or (last is not None and (view.term, view.stamp) != (last.term, last.stamp))
        if self._led:
            return LeaderVerdict.LED
        new_claim = last is None or bool(view.claims - last.claims)
        self._unchanged = 0 if new_claim or seconds > SLOW_POLL_S else self._unchanged + 1
        silent = self._unchanged * self._interval >= LEADERLESS_AFTER_S
        return LeaderVerdict.LEADERLESS if silent else LeaderVerdict.UNKNOWN


class StartupHeartbeats:
    """The heartbeats of other nodes as seen by one node, in polls at least `interval` seconds apart."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last: dict[int, object] = {}
        self._unchanged: dict[int, int] = {}  # consecutive polls that showed the same heartbeat

    def observe(self, heartbeats: Mapping[int, object], seconds: float) -> None:
        """Record one poll: the heartbeats that could be read, by node number, and the duration of the poll."""
        answered = seconds <= SLOW_POLL_S
        same = {node for node, beat in heartbeats.items() if answered and self._last.get(node) == beat}
        self._unchanged = {node: self._unchanged.get(node, 0) + 1 if node in same else 0 for node in heartbeats}
        self._last = dict(heartbeats)

    def silent(self, seconds: float = STARTUP_SILENCE_S) -> set[int]:
        """Return the nodes whose heartbeat has not changed for this long."""
        return {node for node, polls in self._unchanged.items() if polls * self._interval >= seconds}
