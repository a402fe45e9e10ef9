"""The driver of an idle cluster (`muster up`): `agent.pyz idle RUN_DIR`, in the user's interpreter.

It exits with 0 on a request to end the cluster, or when the cluster was unused for `--idle-timeout`.
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

POLL_INTERVAL_S = 0.5  # of end requests, guests and sessions
RAY_POLL_INTERVAL_S = 5.0  # longer, since each poll loads Ray's control service
# A session touches its file every 10 s, and a network filesystem may show that a minute late.
SESSION_TIMEOUT_S = 100.0


class IdleTimer:
    """Measures for how long the cluster was unused. Pure: the caller passes the time."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout, self._last_used = timeout, now

    def expired(self, in_use: bool, now: float) -> bool:
        """Return whether the cluster was unused for the whole timeout."""
        if in_use:
            self._last_used = now
        return now - self._last_used >= self._timeout


class OpenSessions:
    """Detects attached sessions by their files; a session whose file is no longer touched was killed.

    Only changes of the modification times count, not their values: hosts' clocks differ.
    """

    def __init__(self) -> None:
        self._changed: dict[str, tuple[float, float]] = {}  # file name: modification time, local time of its discovery

    def any_alive(self, files: dict[str, float], now: float) -> bool:
        """Return whether a session is alive; `files` are names and modification times."""
        known = self._changed
        self._changed = {
            name: known[name] if name in known and known[name][0] == touched else (touched, now)
            for name, touched in files.items()
        }
        return any(now - seen < SESSION_TIMEOUT_S for _, seen in self._changed.values())


class ClusterUse:
    """Detects use of the cluster: guests, sessions, Ray's jobs."""

    def __init__(self, attempt: AttemptPaths, ray_jobs: Callable[[], bool]) -> None:
        self._attempt, self._ray_jobs = attempt, ray_jobs
        self._sessions = OpenSessions()
        self._guests: set[str] = set()

    def poll(self, now: float) -> bool:
        """Return whether the cluster is in use. All sources are polled each time, since each keeps state."""
        sessions = self._sessions.any_alive(_modification_times(self._attempt.sessions_dir), now)
        return any([self._guests_used(), sessions, self._ray_jobs()])

    def _guests_used(self) -> bool:
        """Return whether a guest runs, or has started and ended since the last poll."""
        names = _modification_times(self._attempt.guests_dir)
        guests = {name[: -len(".json")] for name in names if name.endswith(".json")}
        new, self._guests = guests - self._guests, guests
        return bool(new) or any(f"{guest}.outcome" not in names for guest in guests)


class CachedPoll:
    """Calls `poll` at most once per interval (seconds) and returns its last result in between."""

    def __init__(self, poll: Callable[[], bool], interval: float) -> None:
        self._poll, self._interval = poll, interval
        self._polled, self._result = float("-inf"), True

    def __call__(self) -> bool:
        if time.monotonic() - self._polled >= self._interval:
            self._result, self._polled = self._poll(), time.monotonic()
        return self._result


def main(argv: list[str]) -> int:
    run = RunPaths(argv[0])
    attempt = run.attempt(int(os.environ["MUSTER_ATTEMPT"]))
    signal.signal(signal.SIGTERM, _exit_successfully)
    for signum in (signal.SIGUSR1, signal.SIGUSR2):  # a checkpoint signal is for the guests
        signal.signal(signum, signal.SIG_IGN)
    timeout = read_record(run.job).get("idle_timeout")
    ends = f"after {timeout:g} s without use, or " if timeout else ""
    print(f"muster: the cluster is ready; it ends {ends}with: muster down {run.run_id}", flush=True)
    use = ClusterUse(attempt, _ray_jobs(min(RAY_POLL_INTERVAL_S, timeout / 4))) if timeout else None
    idle = IdleTimer(timeout or 0.0, time.monotonic())
    while True:
        if os.path.basename(attempt.down_request) in os.listdir(attempt.root):
            print(f"muster: {read_record(attempt.down_request).get('reason', 'requested to end')}", flush=True)
            return 0
        if use is not None and idle.expired(use.poll(time.monotonic()), time.monotonic()):
            print(f"muster: the cluster was unused for {timeout:g} s and ends", flush=True)
            return 0
        time.sleep(POLL_INTERVAL_S)


def _ray_jobs(interval: float) -> Callable[[], bool]:
    """Return a poll of Ray's jobs; it must run several times per idle timeout, to notice short jobs."""
    address = os.environ.get("RAY_ADDRESS")
    return CachedPoll(RayJobs(address).in_use, interval) if address else lambda: False


def _exit_successfully(signum: int, frame: Any) -> None:
    """Exit with 0: ending an idle cluster is no failure."""
    sys.stdout.flush()
    os._exit(0)


def _modification_times(directory: str) -> dict[str, float]:
    """Return the files of a directory with their modification times, without those that vanish meanwhile."""
    times = {}
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                times[entry.name] = entry.stat().st_mtime
    return times
