"""The election of the first leader: a node leads the first term if no node with a lower rank will.

A lower rank will not lead if the launcher reports that its task ended, or if its startup heartbeat has stopped (see
`election/leader_silence.py`): if its host is the batch host, the launcher is lost with it and reports nothing. A node
that is only slow, in `--setup` or while its container starts, keeps sending heartbeats and is waited for.
"""

from __future__ import annotations

import logging
import time

from muster.agent.job import Identity
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_SILENCE_S, StartupHeartbeats
from muster.rundir import launcher_log
from muster.rundir.hosts import host_name, host_names
from muster.rundir.startup_heartbeat import read_startup_heartbeats, write_startup_heartbeat

logger = logging.getLogger(__name__)


class FirstLeaderElection:
    """Polled regularly, off the event loop, by a node that has no leader yet."""

    def __init__(self, identity: Identity, interval: float) -> None:
        """`interval`: the minimum number of seconds between two polls."""
        self._identity = identity
        self._heartbeats = StartupHeartbeats(interval)
        self._count = 0
        self._silent: set[int] = set()

    def poll(self) -> bool:
        """Write this node's heartbeat and check the lower ranks; return whether none of them will lead."""
        rank, attempt = self._identity.rank, self._identity.attempt
        if rank > FIRST_LEADER_CANDIDATES:
            return False
        began = time.monotonic()
        self._count += 1
        try:
            write_startup_heartbeat(attempt, rank, f"agent {self._count}")
        except OSError as error:
            logger.warning("%s could not be written: %s", attempt.startup_heartbeat(rank), error)
        self._heartbeats.observe(read_startup_heartbeats(attempt, range(rank)), time.monotonic() - began)
        ended = {end.rank for end in launcher_log.read(attempt.steps_log, host_names(attempt))}
        silent = self._heartbeats.silent() - ended
        for lost in sorted(silent - self._silent):
            host = host_name(attempt, lost)
            logger.warning("%s has sent no heartbeat for %g s and has not become leader", host, STARTUP_SILENCE_S)
        self._silent = silent
        return (ended | silent).issuperset(range(rank))
