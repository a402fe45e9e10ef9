"""Detect killed processes that hang in the kernel, and describe them. Part of the supervisor's program.

A process in uninterruptible sleep (a filesystem or device does not answer) acts on a KILL only when it wakes. It never
runs its own code again, so nothing more needs to be done: it is reported and not waited for.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from muster.process.proctree import (
    POLL_S,
    START_TIME,
    descendants,
    ended_child,
    kill_descendants,
    kill_groups,
    kill_is_pending,
    read_proc_file,
    read_process,
    read_stat,
)

STUCK_S = 10.0  # without CPU time after the KILL: GPU drivers sleep for some seconds while they free a process
EXIT_TIMEOUT_S = 120.0  # with CPU time: the kernel needs a minute or more to free a terabyte of small pages
ALREADY_KILLED_S = 2.0  # if another process sent the KILL: usually a supervisor, which has already waited
CPU_TIMES = slice(11, 13)  # indexes of user and system time, as proctree.FLAGS
STATES = {"D": "uninterruptible sleep", "R": "running", "S": "sleeping", "T": "stopped", "t": "traced", "Z": "zombie"}
STACK_FRAMES = 8  # of the kernel stack: the upper ones show what the process waits for


class LeftoverProcess(NamedTuple):  # not a dataclass: that import would delay every start by milliseconds
    """A process that could not be ended; `wchan` and `stack` are its position in the kernel, if readable."""

    pid: int
    name: str
    state: str
    wchan: str = ""
    stack: tuple[str, ...] = ()
    killed: bool = True  # False: it runs as another user and may not be signalled

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> LeftoverProcess:
        """Create one from the supervisor's message."""
        return cls(**{**message, "stack": tuple(message["stack"])})

    def __str__(self) -> str:
        what = f"process {self.pid} ({self.name}) could not be ended"
        if not self.killed:
            return f"{what}: it runs as another user and may not be signalled"
        where = f" in {self.wchan}" if self.wchan else ""
        stack = f" (kernel stack: {', '.join(self.stack)})" if self.stack else ""
        return (
            f"{what}: SIGKILL has no effect, since it is in state {self.state} ({STATES.get(self.state, 'unknown')})"
            f"{where}{stack}. A filesystem or a device of this node does not answer; the process ends when that "
            "answers, or with a restart of the node"
        )


class KillProgress:
    """Records since when killed processes have made no progress towards their end."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, float, float, list[bytes]]] = {}  # start, first seen, last progress, CPU

    def note_already_killed(self, pids: Iterable[int]) -> None:
        """Note the processes that another one has killed: they get less time.

        Call this before any signal is sent: a TERM that ends a process shows as a pending KILL, too.
        """
        for pid in pids:
            if kill_is_pending(pid):
                self._update(pid, time.monotonic() + ALREADY_KILLED_S - STUCK_S)

    def note(self, pids: Iterable[int]) -> None:
        """Note the processes that are about to be killed, the first time or again."""
        for pid in pids:
            self._update(pid, time.monotonic())

    def _update(self, pid: int, progress: float) -> None:
        fields = read_stat(pid)
        if not fields:
            self._known.pop(pid, None)
            return
        start, cpu = fields[START_TIME], fields[CPU_TIMES]
        known = self._known.get(pid)
        if known is None or known[0] != start:
            self._known[pid] = start, time.monotonic(), progress, cpu
        elif known[3] != cpu:
            self._known[pid] = start, known[1], progress, cpu

    def hanging(self, pids: Iterable[int]) -> list[int]:
        """Return the processes that are no longer waited for."""
        now, found = time.monotonic(), []
        for pid in pids:
            _, first, progress, _ = self._known.get(pid, (b"", now, now, []))
            if now - progress > STUCK_S or now - first > EXIT_TIMEOUT_S:
                found.append(pid)
        return found


def describe_leftover(pid: int) -> LeftoverProcess | None:
    """Describe a process that is left; None if it has ended meanwhile."""
    thread = _hanging_thread(pid)
    state = read_stat(pid, thread)[:1]
    if not state or read_process(pid) is None:
        return None
    place = f"/proc/{pid}/task/{thread}"
    frames = read_proc_file(f"{place}/stack").splitlines()
    stack = [line.split()[-1].partition("+")[0] for line in frames if line.split()]
    wchan = read_proc_file(f"{place}/wchan").strip()
    wchan = "" if wchan == "0" else wchan  # it runs, or its position is not readable
    return LeftoverProcess(
        pid,
        read_proc_file(f"{place}/comm").strip(),
        state[0].decode(),
        wchan,
        tuple(stack[:STACK_FRAMES]),
        _may_kill(pid),
    )


def _hanging_thread(pid: int) -> int:
    """Return the thread that hangs, which need not be the main thread."""
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


def sweep() -> int:
    """KILL every descendant of this process until none is left; return the number of killed processes.

    This is the last resort at the owner's end. Programs that run as another user, and processes that hang in the
    kernel, remain.
    """
    killed: set[int] = set()
    progress = KillProgress()
    progress.note_already_killed(descendants(os.getpid()))
    while True:
        reached, foreign = kill_descendants(before=progress.note)
        killed.update(reached)
        if (foreign or reached) and len(progress.hanging(reached)) == len(reached):
            return len(killed)
        try:
            while (pid := ended_child()) is not None:
                kill_groups([os.getpgid(pid)])
                os.waitpid(pid, 0)
        except ChildProcessError:
            return len(killed)
        time.sleep(POLL_S)
