"""What KILL has not ended yet: which processes are still on their way out, which hang in the kernel, and where.

Part of the supervisor's program. A process in uninterruptible sleep (a filesystem or a device that does not answer)
takes a KILL only when it wakes. It never runs its own code again, so nothing more has to be done to it, and nothing
more can be done: it is reported, and not waited for.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from muster.process.proctree import (
    POLL_S,
    descendants,
    ended_child,
    kill_descendants,
    kill_groups,
    kill_is_pending,
    read_process,
    read_stat,
)

STUCK_S = 10.0  # without any CPU time after the KILL: GPU drivers sleep for some seconds while they free a process
SLOWEST_S = 120.0  # also with CPU time: the kernel needs a minute or more to free a terabyte of small pages
OTHERS_S = 2.0  # for one whose KILL another process sent before: a supervisor, which has waited for it
CPU_TIMES, START = slice(11, 13), 19  # indices of user and system time, and of the start, as in tree.FLAGS
STATES = {"D": "uninterruptible sleep", "R": "running", "S": "sleeping", "T": "stopped", "t": "traced", "Z": "zombie"}
FRAMES = 8  # of the kernel's stack: the upper ones tell what it waits for


class Left(NamedTuple):  # not a dataclass: importing those would cost every supervisor's start some milliseconds
    """A process that could not be ended. `wchan` and `stack` are where it is in the kernel, where that may be read."""

    pid: int
    name: str
    state: str
    wchan: str = ""
    stack: tuple[str, ...] = ()
    killed: bool = True  # else it is another user's, and may not be signalled

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Left:
        return cls(**{**message, "stack": tuple(message["stack"])})

    def __str__(self) -> str:
        what = f"process {self.pid} ({self.name}) could not be ended"
        if not self.killed:
            return f"{what}: it has become another user's, and may not be signalled by this one"
        where = f" in {self.wchan}" if self.wchan else ""
        stack = f" (kernel stack: {', '.join(self.stack)})" if self.stack else ""
        return (
            f"{what}: SIGKILL has no effect, since it is in state {self.state} ({STATES.get(self.state, 'unknown')})"
            f"{where}{stack}. A filesystem or a device of this node does not answer; the process ends when that does, "
            "else with a restart of the node"
        )


class Dying:
    """Records since when killed processes have made no progress towards their end."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, float, float, list[bytes]]] = {}  # start, first seen, last progress, CPU

    def expect(self, pids: Iterable[int]) -> None:
        """Look, before any signal is sent, for those that another process has killed: they get less time.

        To be called first: a TERM that ends a process is a pending KILL, too, until it has ended.
        """
        for pid in pids:
            if kill_is_pending(pid):
                self._see(pid, time.monotonic() + OTHERS_S - STUCK_S)

    def note(self, pids: Iterable[int]) -> None:
        """Look at those that are about to be killed, also again."""
        for pid in pids:
            self._see(pid, time.monotonic())

    def _see(self, pid: int, progress: float) -> None:
        fields = read_stat(pid)
        if not fields:
            self._known.pop(pid, None)
            return
        start, cpu = fields[START], fields[CPU_TIMES]
        known = self._known.get(pid)
        if known is None or known[0] != start:
            self._known[pid] = start, time.monotonic(), progress, cpu
        elif known[3] != cpu:
            self._known[pid] = start, known[1], progress, cpu

    def hanging(self, pids: Iterable[int]) -> list[int]:
        """Those of them that are not worth waiting for any more."""
        now, found = time.monotonic(), []
        for pid in pids:
            _, first, progress, _ = self._known.get(pid, (b"", now, now, []))
            if now - progress > STUCK_S or now - first > SLOWEST_S:
                found.append(pid)
        return found


def look_at(pid: int) -> Left | None:
    """Describe a process that is left; None when it has ended meanwhile."""
    thread = _hanging_thread(pid)
    state = read_stat(pid, thread)[:1]
    if not state or read_process(pid) is None:
        return None
    place = f"/proc/{pid}/task/{thread}"
    stack = [line.split()[-1].partition("+")[0] for line in _read(f"{place}/stack").splitlines() if line.split()]
    wchan = _read(f"{place}/wchan").strip()
    wchan = "" if wchan == "0" else wchan  # it runs, or its place may not be seen
    return Left(pid, _read(f"{place}/comm").strip(), state[0].decode(), wchan, tuple(stack[:FRAMES]), _may_kill(pid))


def _hanging_thread(pid: int) -> int:
    """Return the thread that keeps the process from ending, which need not be its main thread."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/task"):
            if read_stat(pid, int(entry))[:1] == [b"D"]:
                return int(entry)
    return pid


def _may_kill(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, PermissionError)
    return True


def _read(path: str) -> str:
    """Read a file of /proc; empty where it may not be read, or does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def sweep() -> int:
    """KILL every descendant of this process until none is left: the last resort at an owner's own end.

    Left are programs that have become another user, and what hangs in the kernel.
    """
    killed: set[int] = set()
    dying = Dying()
    dying.expect(descendants(os.getpid()))
    while True:
        reached, foreign = kill_descendants(before=dying.note)
        killed.update(reached)
        if (foreign or reached) and len(dying.hanging(reached)) == len(reached):
            return len(killed)
        try:
            while (pid := ended_child()) is not None:
                kill_groups([os.getpgid(pid)])
                os.waitpid(pid, 0)
        except ChildProcessError:
            return len(killed)
        time.sleep(POLL_S)
