"""Identify processes, check that they are alive, and kill them."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterable, Iterator

from muster.lab.errors import LabError
from muster.process.pidfd import ProcessHandle, wait_for_one
from muster.process.proctree import POLL_S, START_TIME, read_stat, start_time


@dataclasses.dataclass(frozen=True)
class ProcessId:
    """A pid with its start time, so that a reused pid is not mistaken for the recorded process."""

    pid: int
    started: int

    @classmethod
    def find(cls, pid: int) -> ProcessId | None:
        """Return the process that has this pid now, or None."""
        started = start_time(pid)
        return None if started is None else cls(pid, started)

    def alive(self) -> bool:
        """Return whether it runs; a zombie does not."""
        fields = read_stat(self.pid)
        return bool(fields) and int(fields[START_TIME]) == self.started and fields[0] not in (b"Z", b"X")


def kill_all(processes: Iterable[ProcessId], deadline_s: float = 30.0) -> None:
    """Send SIGKILL to all and wait until they are gone; a namespace's init takes all its processes with it."""
    waiting: list[ProcessHandle] = []
    try:
        for process in processes:
            # Open the handle first: it keeps the pid from being reused while `alive` compares the start time.
            handle = ProcessHandle(process.pid)
            waiting.append(handle)
            if not process.alive():
                handle.release()
            handle.send(signal.SIGKILL)
        deadline = time.monotonic() + deadline_s
        while left := [handle for handle in waiting if not handle.gone]:
            if time.monotonic() > deadline:
                pids = ", ".join(str(handle.pid) for handle in left)
                raise LabError(f"not ended {deadline_s:.0f} s after SIGKILL: processes {pids}")
            wait_for_one(left, POLL_S)
    finally:
        for handle in waiting:
            handle.release()


def all_pids() -> Iterator[int]:
    """Yield the pids of all processes of this machine."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def namespace_id(pid: int, kind: str) -> str | None:
    """Return the id of a process's namespace of a kind (`pid`, `net`, ...), or None if the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None
