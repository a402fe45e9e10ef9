"""The driver of an idle cluster (`muster up`): `agent.pyz idle RUN_DIR`, in the user's own interpreter.

It waits, and leaves with 0 when the cluster is asked to end or when nobody has used it for `--idle-timeout`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Any, Callable

from muster.agent.ray.jobs import RayJobs
from muster.rundir import AttemptPaths, RunPaths, read_record

LOOK_S = 0.5
RAY_LOOK_S = 5.0
# A session touches its file every 10 s, and a network filesystem may show that a minute late.
SESSION_SILENT_S = 100.0


class IdleCluster:
    """How long nobody has used the cluster. Pure: the time is told."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout, self._used = timeout, now

    def look(self, in_use: bool, now: float) -> bool:
        """Whether it has been idle for long enough to end."""
        if in_use:
            self._used = now
        return now - self._used >= self._timeout


class OpenSessions:
    """Shells and commands on the nodes, by their files: one that is not touched any more was killed.

    Change is what counts, not the files' times: hosts' clocks differ.
    """

    def __init__(self) -> None:
        self._changed: dict[str, tuple[float, float]] = {}  # by name: the file's time, and when we first saw it

    def live(self, files: dict[str, float], now: float) -> bool:
        known = self._changed
        self._changed = {
            name: known[name] if name in known and known[name][0] == touched else (touched, now)
            for name, touched in files.items()
        }
        return any(now - seen < SESSION_SILENT_S for _, seen in self._changed.values())


class Use:
    """Everything that counts as use of the cluster: guests, sessions, Ray's jobs."""

    def __init__(self, attempt: AttemptPaths, ray_jobs: Callable[[], bool]) -> None:
        self._attempt, self._ray_jobs = attempt, ray_jobs
        self._sessions = OpenSessions()
        self._guests: set[str] = set()

    def look(self, now: float) -> bool:
        """All are looked at, whatever the first says: each has a memory."""
        return any(
            [self._guests_used(), self._sessions.live(_times(self._attempt.sessions_dir), now), self._ray_jobs()]
        )

    def _guests_used(self) -> bool:
        """One runs, or has come and gone since the last look."""
        names = _times(self._attempt.guests_dir)
        guests = {name[: -len(".json")] for name in names if name.endswith(".json")}
        new, self._guests = guests - self._guests, guests
        return bool(new) or any(f"{guest}.outcome" not in names for guest in guests)


class Rarely:
    """A question that is asked anew only after a while; meanwhile its last answer stands."""

    def __init__(self, ask: Callable[[], bool], every: float) -> None:
        self._ask, self._every = ask, every
        self._asked, self._answer = float("-inf"), True

    def __call__(self) -> bool:
        if time.monotonic() - self._asked >= self._every:
            self._answer, self._asked = self._ask(), time.monotonic()
        return self._answer


def main(argv: list[str]) -> int:
    run = RunPaths(argv[0])
    attempt = run.attempt(int(os.environ["MUSTER_ATTEMPT"]))
    signal.signal(signal.SIGTERM, _leave)
    for signum in (signal.SIGUSR1, signal.SIGUSR2):  # a checkpoint signal is for the guests
        signal.signal(signum, signal.SIG_IGN)
    timeout = read_record(run.job).get("idle_timeout")
    ends = f"after {timeout:g} s without use, or " if timeout else ""
    print(f"muster: the cluster is ready; it ends {ends}with: muster down {run.run_id}", flush=True)
    use = Use(attempt, _ray_jobs(min(RAY_LOOK_S, timeout / 4))) if timeout else None
    idle = IdleCluster(timeout or 0.0, time.monotonic())
    while True:
        if os.path.basename(attempt.down_request) in os.listdir(attempt.root):
            print(f"muster: {read_record(attempt.down_request).get('reason', 'asked to end')}", flush=True)
            return 0
        if use is not None and idle.look(use.look(time.monotonic()), time.monotonic()):
            print(f"muster: nobody has used the cluster for {timeout:g} s: it ends", flush=True)
            return 0
        time.sleep(LOOK_S)


def _ray_jobs(every: float) -> Callable[[], bool]:
    """Asked several times within the idle time: a job that came since the last answer must not be missed."""
    address = os.environ.get("RAY_ADDRESS")
    return Rarely(RayJobs(address).used, every) if address else lambda: False


def _leave(signum: int, frame: Any) -> None:
    """To be ended is what an idle cluster is for: no failure."""
    sys.stdout.flush()
    os._exit(0)


def _times(directory: str) -> dict[str, float]:
    """The files of a directory, and when each was changed; those that vanish meanwhile are left out."""
    times = {}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                times[entry.name] = entry.stat().st_mtime
    return times
