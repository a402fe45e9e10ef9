"""Describe what a run without a leader waits for, from the heartbeat of its first node.

Before a leader publishes a status, `--setup` and containers may take minutes; that must not look like a hang.
"""

from __future__ import annotations

import os
import time

from muster.election.leader_silence import STARTUP_SILENCE_S
from muster.lifecycle.config import FIRST_LEADER
from muster.rundir import AttemptPaths
from muster.rundir.hosts import host_names
from muster.rundir.startup_heartbeat import read_startup_heartbeats

HEARTBEAT_POLL_S = 1.0
FIRST_MESSAGE_S = 10.0  # most runs have a leader by then and need no message
REPEAT_MESSAGE_S = 60.0  # so that a run that waits for long does not look hung


def leader_wait_message(attempt: AttemptPaths) -> str | None:
    """Describe what the attempt waits for now; None if a node has claimed a term, or the attempt has ended."""
    if attempt.claims() or os.path.exists(attempt.outcome):
        return None
    try:
        age = max(0.0, time.time() - os.stat(attempt.startup_heartbeat(FIRST_LEADER)).st_mtime)
    except OSError:
        return _message(attempt, None)
    return _message(attempt, age)


def _message(attempt: AttemptPaths, silent: float | None) -> str:
    """`silent` is the number of seconds since the first node's heartbeat changed; None if it has none."""
    host = (host_names(attempt) or ["the first node"])[0]
    if silent is None:
        return f"waiting for {host}, the first leader: no process of the job has started there yet"
    if silent < STARTUP_SILENCE_S:
        return f"waiting for {host}, the first leader: its --setup, container or health check is still running"
    return f"{host}, the first leader, has sent no heartbeat for {silent:.0f} s: another node takes over"


class LeaderWait:
    """Follows one attempt. Silence is measured with the clock of this host, since clocks of hosts may differ."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self._attempt = attempt
        self._began = self._changed = time.monotonic()
        self._polled = -HEARTBEAT_POLL_S
        self._heartbeat: str | None = None
        self._last_message: tuple[str, float] = ("", -REPEAT_MESSAGE_S)
        self._over = False

    def poll(self) -> str | None:
        """Return a message to show now; None if there is none, or it was shown less than a minute ago."""
        now = time.monotonic()
        if self._over or now - self._polled < HEARTBEAT_POLL_S:
            return None
        self._polled, self._over = now, bool(self._attempt.claims())
        heartbeat = read_startup_heartbeats(self._attempt, [FIRST_LEADER]).get(FIRST_LEADER)
        if heartbeat != self._heartbeat:
            self._heartbeat, self._changed = heartbeat, now
        if self._over or now - self._began < FIRST_MESSAGE_S:
            return None
        text = _message(self._attempt, None if heartbeat is None else now - self._changed)
        kind = text.partition(":")[2]  # without the seconds
        if kind == self._last_message[0] and now - self._last_message[1] < REPEAT_MESSAGE_S:
            return None
        self._last_message = (kind, now)
        return text
