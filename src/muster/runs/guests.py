"""Guest sessions from outside: request a further driver from the leader, follow it, request its end.

The leader's side is agent/leader/guests.py.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence

from muster.process.log_reader import LogReader
from muster.rundir import AttemptPaths, RunPaths, is_listed, make_private_dirs, read_record, write_atomic, write_json
from muster.runs.follow import FOLLOW_POLL_S
from muster.runs.monitor import RunMonitor


class GuestLost(Exception):
    """The cluster ended without a recorded outcome of the guest."""


class Guest:
    """A further driver on a running cluster."""

    def __init__(self, run: RunPaths, attempt: AttemptPaths) -> None:
        self.id = f"{time.strftime('%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
        self._run, self._attempt = run, attempt

    @property
    def log(self) -> str:
        return self._attempt.guest_log(self.id)

    def request(self, command: Sequence[str], env: dict[str, str], workdir: str) -> None:
        """Write the request, which the leader polls. Its variables may be secrets: only the owner can read it."""
        make_private_dirs(self._attempt.guests_dir)
        request = {"command": list(command), "env": env, "workdir": workdir, "time": time.time()}
        write_atomic(self._attempt.guest_request(self.id), json.dumps(request) + "\n")

    def stop(self) -> None:
        """Request its end: SIGTERM, and SIGKILL after the run's --stop-grace."""
        write_json(self._attempt.guest_stop(self.id), {"time": time.time()})

    def follow(self, write: Callable[[bytes], None]) -> int:
        """Pass its output to `write` until it ends; return its exit code. Raises GuestLost."""
        output, monitor = LogReader(self.log), RunMonitor(self._run)
        while True:
            over = is_listed(self._attempt.outcome) or monitor.poll_dead(self._attempt) is not None
            outcome = self._attempt.guest_outcome(self.id)
            code = read_record(outcome).get("exit_code") if is_listed(outcome) else None
            while data := output.read_with_notice():
                write(data)
            if code is not None:
                return int(code)
            if over:
                raise GuestLost(f"{self._run.run_id} ended before guest {self.id} had")
            time.sleep(FOLLOW_POLL_S)
