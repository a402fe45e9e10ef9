"""The processes below this one: who they are, how much memory they take, and ending them until none is left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass

from muster.process.proctree import kill_descendants

POLL_S = 0.005
GIVE_UP_S = 5.0  # what cannot be killed by then hangs in the kernel


def children_of(pid: int) -> list[int]:
    """The kernel's own list; empty where it has none."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def family() -> list[int]:
    """Every process below this one, nearest first; orphans are ours, as we are their subreaper."""
    found = children_of(os.getpid())
    for pid in found:  # grows while we walk it
        found.extend(children_of(pid))
    return found


def memory_of(pid: int) -> int:
    """Bytes that only this process accounts for: anonymous and shared memory, not files'."""
    total = 0
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


@dataclass(frozen=True)
class Reaped:
    """The first child's end (as wait4 has it), and how many others had to be killed."""

    status: int
    cpu_s: float
    max_rss_kb: int
    killed: int
    all_gone: bool


class Reaper:
    """Waits for one child and then ends all that it left."""

    def __init__(self, first: int, owns_everything: bool) -> None:
        """`owns_everything`: nobody but our descendants can be hit by a signal to everybody."""
        self.first = first
        self._owns_everything = owns_everything
        self._cpu_s = 0.0
        self._end: tuple[int, int] | None = None  # of the first: status, max rss
        self._nobody_is_left = False

    @property
    def first_has_ended(self) -> bool:
        return self._end is not None

    def collect(self) -> None:
        """Reap whoever has ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._nobody_is_left = True
                return
            if pid == 0:
                return
            self._cpu_s += usage.ru_utime + usage.ru_stime
            if pid == self.first:
                self._end = status, usage.ru_maxrss

    def finish(self) -> Reaped:
        """Kill whoever is left, until nobody is."""
        killed, end = 0, time.monotonic() + GIVE_UP_S
        self.collect()
        while not self._nobody_is_left and time.monotonic() < end:
            killed = max(killed, self._kill())
            time.sleep(POLL_S)
            self.collect()
        status, rss = self._end or (signal.SIGKILL, 0)
        return Reaped(status, self._cpu_s, rss, killed, self._nobody_is_left)

    def _kill(self) -> int:
        if not self._owns_everything:
            # The first one's group at once: a bomb leaves us little time to read lists of processes.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.first, signal.SIGKILL)
            return max(1, len(kill_descendants()[0]))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)  # one step for the kernel: a fork cannot slip through
        return 1


class Ends:
    """Wakes a poll when the first child ends: by a pidfd, or by SIGCHLD where the kernel or this Python has none."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._fd = -1
        self._wake = -1

    def watch(self, pid: int) -> None:
        try:
            self._fd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._by_signal()
        else:
            self._poll.register(self._fd, select.POLLIN)

    def forget(self) -> None:
        if self._fd != -1:
            self._poll.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1

    def heard(self) -> None:
        if self._wake != -1:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)

    def _by_signal(self) -> None:
        if self._wake == -1:
            self._wake, write = os.pipe()
            os.set_blocking(write, False)
            os.set_blocking(self._wake, False)
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            self._poll.register(self._wake, select.POLLIN)
            os.write(write, b"x")  # it may have ended before we listened
