"""What reaches the leader through files only: a request to stop, the launcher's words about tasks that ended, and
heartbeats of nodes that have not arrived."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, STARTUP_LOSS_S, StartupHeartbeats
from muster.rundir import AttemptPaths, read_json
from muster.rundir.launcher_log import EarlyEnd, LauncherLog
from muster.rundir.startup_heartbeat import read_startup_heartbeats


class RunDirectoryWatch:
    """Looked at regularly, off the event loop."""

    def __init__(self, attempt: AttemptPaths, interval: float, hosts: Sequence[str] = ()) -> None:
        """`interval`: the least seconds between two looks."""
        self._attempt = attempt
        self._steps = LauncherLog(attempt.steps_log, hosts)
        self._heartbeats = StartupHeartbeats(interval)

    def look(self) -> tuple[dict[str, Any] | None, list[EarlyEnd]]:
        """The stop request, if there is one, and the tasks whose end is news.

        By listing first: a network filesystem may remember for half a minute that a file was not there.
        """
        path = self._attempt.stop_request
        try:
            asked = os.path.basename(path) in os.listdir(self._attempt.root)
        except OSError:
            asked = False
        return read_json(path) if asked else None, self._steps.poll()

    def silent(self, awaited: Iterable[int]) -> set[int]:
        """Of the nodes that have not arrived, those whose heartbeat stopped so long ago that they will not."""
        began = time.monotonic()
        found = read_startup_heartbeats(self._attempt, [rank for rank in awaited if rank <= FIRST_LEADER_CANDIDATES])
        self._heartbeats.look(found, time.monotonic() - began)
        return self._heartbeats.silent(STARTUP_LOSS_S)
