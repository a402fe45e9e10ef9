"""The leader's input from files: stop requests, ended tasks in the launcher's stderr, and startup heartbeats."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from muster.agent.leader.inbox import RunDirectoryPolled
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_LOSS_S, StartupHeartbeats
from muster.rundir import AttemptPaths, is_listed, read_json
from muster.rundir.launcher_log import LauncherLog
from muster.rundir.startup_heartbeat import read_startup_heartbeats


class RunDirectoryWatch:
    """Polled regularly, off the event loop."""

    def __init__(self, attempt: AttemptPaths, interval: float, hosts: Sequence[str] = ()) -> None:
        """`interval`: the minimum number of seconds between two polls."""
        self._attempt = attempt
        self._launcher_log = LauncherLog(attempt.steps_log, hosts)
        self._heartbeats = StartupHeartbeats(interval)

    def poll(self, expected: Sequence[int]) -> RunDirectoryPolled | None:
        """Return what is new; None if nothing is. `expected`: nodes that have not arrived, but send heartbeats."""
        path = self._attempt.stop_request
        request = read_json(path) if is_listed(path) else None
        ended = self._launcher_log.poll()
        silent = self.silent(expected) if expected else frozenset()
        return RunDirectoryPolled(request, ended, silent) if request or ended or silent else None

    def silent(self, expected: Iterable[int]) -> frozenset[int]:
        """Return the expected nodes that count as lost, because their startup heartbeat has stopped."""
        began = time.monotonic()
        found = read_startup_heartbeats(
            self._attempt, [node_index for node_index in expected if node_index <= FIRST_LEADER_CANDIDATES]
        )
        self._heartbeats.observe(found, time.monotonic() - began)
        return frozenset(self._heartbeats.silent(STARTUP_LOSS_S))
