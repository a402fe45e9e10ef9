"""The leader's input from files: stop requests, ended tasks in the launcher's stderr, and startup heartbeats."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_LOSS_S, StartupHeartbeats
from muster.rundir import AttemptPaths, is_listed, read_json
from muster.rundir.launcher_log import EarlyEnd, LauncherLog
from muster.rundir.startup_heartbeat import read_startup_heartbeats


class RunDirectoryWatch:
    """Polled regularly, off the event loop."""

    def __init__(self, attempt: AttemptPaths, interval: float, hosts: Sequence[str] = ()) -> None:
        """`interval`: the minimum number of seconds between two polls."""
        self._attempt = attempt
        self._launcher_log = LauncherLog(attempt.steps_log, hosts)
        self._heartbeats = StartupHeartbeats(interval)

    def poll(self) -> tuple[dict[str, Any] | None, list[EarlyEnd]]:
        """Return the stop request, if there is one, and the newly ended tasks."""
        path = self._attempt.stop_request
        return read_json(path) if is_listed(path) else None, self._launcher_log.poll()

    def silent(self, expected: Iterable[int]) -> set[int]:
        """Return the expected nodes that count as lost, because their startup heartbeat has stopped."""
        began = time.monotonic()
        found = read_startup_heartbeats(self._attempt, [rank for rank in expected if rank <= FIRST_LEADER_CANDIDATES])
        self._heartbeats.observe(found, time.monotonic() - began)
        return self._heartbeats.silent(STARTUP_LOSS_S)
