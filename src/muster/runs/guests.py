"""Guests from outside: asking the leader for a further driver, following it, asking for its end.

The leader's side is agent/leader/guests.py.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence

from muster.rundir import AttemptPaths, RunPaths, read_record, write_atomic, write_json
from muster.runs.follow import LOOK_S, Tail
from muster.runs.monitor import RunMonitor


class GuestLost(Exception):
    """The cluster ended, and nobody recorded how the guest did."""


class Guest:
    """One further driver on a running cluster."""

    def __init__(self, run: RunPaths, attempt: AttemptPaths) -> None:
        self.id = f"{time.strftime('%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
        self._run, self._attempt = run, attempt

    @property
    def log(self) -> str:
        return self._attempt.guest_log(self.id)

    def ask(self, command: Sequence[str], env: dict[str, str], workdir: str) -> None:
        """Leave the request where the leader looks. Its variables may be secrets: only the owner can read it."""
        os.makedirs(self._attempt.guests_dir, mode=0o700, exist_ok=True)
        request = {"command": list(command), "env": env, "workdir": workdir, "time": time.time()}
        write_atomic(self._attempt.guest_request(self.id), json.dumps(request) + "\n", mode=0o600)

    def stop(self) -> None:
        """Ask for its end: SIGTERM, and SIGKILL after the run's --stop-grace."""
        write_json(self._attempt.guest_stop(self.id), {"time": time.time()})

    def follow(self, write: Callable[[bytes], None]) -> int:
        """Hand its output on until it ends; returns its exit code."""
        output, alive = Tail(self.log), RunMonitor(self._run)
        while True:
            over = _listed(self._attempt.outcome) or alive.gone(self._attempt) is not None
            code = read_record(self._attempt.guest_outcome(self.id)).get("exit_code") if self._has_ended() else None
            while data := output.read():
                write(data)
            if code is not None:
                return int(code)
            if over:
                raise GuestLost(f"{self._run.run_id} ended before guest {self.id} had")
            time.sleep(LOOK_S)

    def _has_ended(self) -> bool:
        return _listed(self._attempt.guest_outcome(self.id))


def _listed(path: str) -> bool:
    """By listing: a network filesystem may remember for half a minute that a file was not there."""
    try:
        return os.path.basename(path) in os.listdir(os.path.dirname(path))
    except OSError:
        return False
