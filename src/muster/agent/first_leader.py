"""Files of the run directory that a node without a leader writes and reads: startup heartbeats, ended tasks.

If the host of a node is the batch host, the launcher is lost with it and reports nothing: then only the node's
heartbeat shows it. A node that is only slow, in `--setup` or while its container starts, keeps sending heartbeats.
"""

from __future__ import annotations

import itertools
import logging

from muster.agent.job import Identity
from muster.election.follower import StartupView
from muster.rundir import launcher_log
from muster.rundir.hosts import host_names
from muster.rundir.startup_heartbeat import read_startup_heartbeats, write_startup_heartbeat

logger = logging.getLogger(__name__)


class StartupPoll:
    """Writes this node's heartbeat and reads those of the nodes before it. Not on the event loop: files may hang."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._count = itertools.count(1)

    def read(self) -> StartupView:
        node_index, attempt = self._identity.node_index, self._identity.attempt
        try:
            write_startup_heartbeat(attempt, node_index, f"agent {next(self._count)}")
        except OSError as error:
            logger.warning("%s could not be written: %s", attempt.startup_heartbeat(node_index), error)
        ends = launcher_log.read(attempt.steps_log, host_names(attempt))
        ended = frozenset(end.node_index for end in ends if end.node_index is not None)
        return StartupView(read_startup_heartbeats(attempt, range(node_index)), ended)
