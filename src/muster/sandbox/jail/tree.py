"""The descendants of this process: wait for them, and kill them until none is left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass

from muster.process.proctree import kill_descendants

POLL_S = 0.005
KILL_TIMEOUT_S = 5.0  # a process that takes longer hangs in the kernel


def children_of(pid: int) -> list[int]:
    """Return the kernel's list of children; empty where the kernel does not have it."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def tcp_sockets() -> int:
    """Return the number of TCP sockets in this network namespace, of IPv4 and IPv6; 0 where there is no /proc."""
    total = 0
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/net/{name}", "rb") as file:
            for line in file:
                if line.startswith((b"TCP: inuse ", b"TCP6: inuse ")):
                    total += int(line.split()[2])
    return total


@dataclass(frozen=True)
class Reaped:
    """The end of the first child (as wait4 reports it), and how many other processes had to be killed."""

    status: int
    cpu_s: float
    max_rss_kb: int
    killed: int
    all_gone: bool


class TreeReaper:
    """Waits for one child and then kills everything that it left."""

    def __init__(self, first: int, owns_everything: bool) -> None:
        """With `owns_everything`, a signal to all processes reaches only our descendants."""
        self.first = first
        self._owns_everything = owns_everything
        self._cpu_s = 0.0
        self._end: tuple[int, int] | None = None  # of the first child: status, max rss
        self._all_reaped = False

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of the processes that were reaped."""
        return self._cpu_s

    @property
    def first_has_ended(self) -> bool:
        return self._end is not None

    def collect(self) -> None:
        """Reap the children that have exited."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._all_reaped = True
                return
            if pid == 0:
                return
            self._cpu_s += usage.ru_utime + usage.ru_stime
            if pid == self.first:
                self._end = status, usage.ru_maxrss

    def finish(self) -> Reaped:
        """Kill and reap all remaining processes."""
        killed, end = 0, time.monotonic() + KILL_TIMEOUT_S
        self.collect()
        while not self._all_reaped and time.monotonic() < end:
            killed = max(killed, self._kill())
            time.sleep(POLL_S)
            self.collect()
        status, rss = self._end or (signal.SIGKILL, 0)
        return Reaped(status, self._cpu_s, rss, killed, self._all_reaped)

    def _kill(self) -> int:
        if not self._owns_everything:
            # First the child's group at once: a fork bomb leaves little time to read process lists.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.first, signal.SIGKILL)
            return max(1, len(kill_descendants()[0]))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)  # atomic in the kernel: no fork escapes
        return 1


class ExitWatch:
    """Wakes a poll when the first child exits: by a pidfd, or by SIGCHLD where the kernel or Python lacks pidfds."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._fd = -1
        self._wake = -1

    def watch(self, pid: int) -> None:
        try:
            self._fd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._watch_signal()
        else:
            self._poll.register(self._fd, select.POLLIN)

    def unwatch(self) -> None:
        if self._fd != -1:
            self._poll.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1

    def clear(self) -> None:
        if self._wake != -1:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)

    def _watch_signal(self) -> None:
        if self._wake == -1:
            self._wake, write = os.pipe()
            os.set_blocking(write, False)
            os.set_blocking(self._wake, False)
            signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            self._poll.register(self._wake, select.POLLIN)
            os.write(write, b"x")  # the child may have exited before this
