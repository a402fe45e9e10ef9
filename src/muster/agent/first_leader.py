"""Whether this node is to lead the first term, because no node before it will: the edge, with files.

A node before this one will not lead when the launcher says that its task ended, or when its heartbeat has stopped (see
`election/leader_silence.py`): where its host is the batch host, the launcher is gone with it and says nothing. A node
that only takes long, in `--setup` or with a container, goes on with its heartbeat, and is waited for.
"""

from __future__ import annotations

import logging
import time

from muster.agent.job import Identity
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_SILENCE_S, StartupHeartbeats
from muster.rundir import AttemptPaths, launcher_log
from muster.rundir.hosts import host_names
from muster.rundir.startup_heartbeat import read_startup_heartbeats, write_startup_heartbeat

logger = logging.getLogger(__name__)


class FirstLeaderElection:
    """Looked at regularly, off the event loop, by a node that has no leader yet."""

    def __init__(self, identity: Identity, interval: float) -> None:
        """`interval`: the least seconds between two looks."""
        self._identity = identity
        self._heartbeats = StartupHeartbeats(interval)
        self._beat = 0
        self._silent: set[int] = set()

    def look(self) -> bool:
        """Show that this node lives, and see whether those before it do; whether none of them will lead."""
        rank, attempt = self._identity.rank, self._identity.attempt
        if rank > FIRST_LEADER_CANDIDATES:
            return False
        began = time.monotonic()
        self._beat += 1
        try:
            write_startup_heartbeat(attempt, rank, f"agent {self._beat}")
        except OSError as error:
            logger.warning("%s could not be written: %s", attempt.startup_heartbeat(rank), error)
        self._heartbeats.look(read_startup_heartbeats(attempt, range(rank)), time.monotonic() - began)
        ended = {end.rank for end in launcher_log.read(attempt.steps_log, host_names(attempt))}
        silent = self._heartbeats.silent() - ended
        for lost in sorted(silent - self._silent):
            logger.warning(
                "%s has sent no heartbeat for %g s and has not become leader", _name(attempt, lost), STARTUP_SILENCE_S
            )
        self._silent = silent
        return (ended | silent).issuperset(range(rank))


def _name(attempt: AttemptPaths, rank: int) -> str:
    hosts = host_names(attempt)
    return hosts[rank] if rank < len(hosts) else f"rank-{rank}"
