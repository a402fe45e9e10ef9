"""Which processes live, who is below whom, and how what is below this one is killed. Part of the supervisor's
program."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Collection, Iterable

PR_SET_CHILD_SUBREAPER = 36
FLAGS, THREADS, START_TIME = (
    6,
    17,
    19,
)  # index of flags, num_threads and starttime among the fields of /proc/<pid>/stat that follow the name
PF_EXITING = 0x4
POLL_S = 0.02  # how often ending processes are looked at; nothing signals "a grandchild was adopted"


def become_subreaper() -> None:
    """Adopt every orphaned descendant instead of letting it go to init."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def read_processes() -> dict[int, tuple[int, int]]:
    """pid -> (parent, process group) of every process that is not yet dead (zombies are left out).

    A process whose main thread has ended looks like a zombie while its other threads run: it counts as alive.
    """
    found = ((pid, read_process(pid)) for pid in newest_first())
    return {pid: process for pid, process in found if process is not None}


def newest_first() -> list[int]:
    """All pids: one that forks and leaves is gone before a long list has been gone through.

    The kernel counts pids up and begins again at the maximum, so those above the last one are the oldest.
    """
    pids = sorted((int(entry) for entry in os.listdir("/proc") if entry.isdigit()), reverse=True)
    last = _last_pid()
    return [pid for pid in pids if pid <= last] + [pid for pid in pids if pid > last]


def _last_pid() -> int:
    """Return the pid that the kernel gave out last; 0 where it does not say."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[4])
    except (OSError, ValueError, IndexError):
        return 0


def read_process(pid: int) -> tuple[int, int] | None:
    """One of these; None when it is dead."""
    fields = read_stat(pid)
    return (int(fields[1]), int(fields[2])) if is_alive(fields) else None


def is_alive(fields: list[bytes]) -> bool:
    """Whether the process with this content of its stat file lives; zombies do not."""
    return bool(fields) and (fields[0] not in (b"Z", b"X") or int(fields[THREADS]) > 1)


def is_leaving(pid: int) -> bool:
    """Dead, or on its way there: its descriptors are closed before it counts as dead, so their end is seen earlier."""
    fields = read_stat(pid)
    return not fields or bool(int(fields[FLAGS]) & PF_EXITING)


def read_stat(pid: int, thread: int | None = None) -> list[bytes]:
    """What the kernel tells of it, or of one of its threads, from the state on; nothing when there is none."""
    try:
        with open(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is no such process.

    A pid together with its start time identifies a process: the kernel gives pids out again.
    """
    fields = read_stat(pid)
    return int(fields[START_TIME]) if fields else None


def own_children() -> list[int]:
    """Read the kernel's list of children, for a process of one thread; empty where the kernel has no such list."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def kill_is_pending(pid: int) -> bool:
    """Whether it was killed and has not ended yet: it never runs its own code again. So is one that a TERM ends."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            masks = [line.split()[1] for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except OSError:
        return False
    return any(int(mask, 16) & 1 << (signal.SIGKILL - 1) for mask in masks)


def descendants(root: int, processes: dict[int, tuple[int, int]] | None = None) -> list[int]:
    """Every live process below root, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in (read_processes() if processes is None else processes).items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:  # grows while we walk it
        found.extend(children.get(pid, ()))
    return found


def kill_descendants(
    spared: Collection[int] = (), before: Callable[[list[int]], None] = lambda pids: None
) -> tuple[list[int], list[int]]:
    """KILL everything below this process, once; returns whom it reached, and who is not ours to signal.

    `before` gets all of them before the KILL.

    Their groups too: the kernel kills a group in one step, while a process that forks and leaves, again and again,
    is often not there any more when a list of pids has been read.
    """
    processes = read_processes()
    found = [pid for pid in descendants(os.getpid(), processes) if pid not in spared]
    before(found)
    foreign = [pid for pid in found if not send_signal(pid, signal.SIGKILL)]
    kill_groups(processes[pid][1] for pid in found)
    return [pid for pid in found if pid not in foreign], foreign


def kill_groups(groups: Iterable[int]) -> None:
    # 0 would mean our own group, and 1 everybody: a child of another pid namespace may show such a number.
    for group in set(groups) - {0, 1, os.getpgrp()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def ended_child() -> int | None:
    """A child that waits to be reaped; None when all live, ChildProcessError when there is none.

    Until it is reaped its number, and its group's, are no other's: the moment to KILL its group. So whoever forks and
    leaves, again and again, betrays its successors.
    """
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if ended is None else ended.si_pid


def send_signal(pid: int, signum: int) -> bool:
    """False when it is not ours to signal: a set-user-id program has become another user."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True
