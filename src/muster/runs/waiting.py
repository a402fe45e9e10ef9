"""What a run waits for that has begun and has no leader yet: in words, from the first node's heartbeat.

Before a leader publishes a status, `--setup` and containers may take minutes on a node; that must not look like a hang.
"""

from __future__ import annotations

import os
import time

from muster.election.leader_silence import STARTUP_SILENCE_S
from muster.lifecycle.config import FIRST_LEADER
from muster.rundir import AttemptPaths
from muster.rundir.hosts import host_names
from muster.rundir.startup_heartbeat import read_startup_heartbeats

LOOK_S = 1.0
QUICK_S = 10.0  # most runs have a leader by then, and nothing is said
REPEAT_S = 60.0  # it is said again, so that a run that waits for long is not taken for hung


def waits_for(attempt: AttemptPaths) -> str | None:
    """In words, as of now; None where a node leads already, or the run is over."""
    if attempt.claims() or os.path.exists(attempt.outcome):
        return None
    try:
        age = max(0.0, time.time() - os.stat(attempt.startup_heartbeat(FIRST_LEADER)).st_mtime)
    except OSError:
        return _words(attempt, None)
    return _words(attempt, age)


def _words(attempt: AttemptPaths, silent: float | None) -> str:
    """`silent`: for how many seconds the heartbeat of the first node has not changed; None if it has none."""
    host = (host_names(attempt) or ["the first node"])[0]
    if silent is None:
        return f"waiting for {host}, which is to lead: nothing of the job has started there yet"
    if silent < STARTUP_SILENCE_S:
        return f"waiting for {host}, which is to lead: its --setup, container or health check still runs"
    return f"{host}, which was to lead, has shown no sign of life for {silent:.0f} s: another node is to lead instead"


class Waiting:
    """Follows one attempt; silence is counted from what was seen here, as the clocks of hosts may differ."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self._attempt = attempt
        self._began = self._changed = time.monotonic()
        self._looked = -LOOK_S
        self._seen: str | None = None
        self._said: tuple[str, float] = ("", -REPEAT_S)
        self._over = False

    def look(self) -> str | None:
        """What is worth saying now; None if nothing is, or it has just been said."""
        now = time.monotonic()
        if self._over or now - self._looked < LOOK_S:
            return None
        self._looked, self._over = now, bool(self._attempt.claims())
        beat = read_startup_heartbeats(self._attempt, [FIRST_LEADER]).get(FIRST_LEADER)
        if beat != self._seen:
            self._seen, self._changed = beat, now
        if self._over or now - self._began < QUICK_S:
            return None
        text = _words(self._attempt, None if beat is None else now - self._changed)
        kind = text.partition(":")[2]  # without the seconds
        if kind == self._said[0] and now - self._said[1] < REPEAT_S:
            return None
        self._said = (kind, now)
        return text
