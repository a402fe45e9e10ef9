"""Read the process tree from /proc, and kill the descendants of this process. Part of the supervisor's program."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Collection, Iterable

PR_SET_CHILD_SUBREAPER = 36
# Index of flags, num_threads and starttime among the fields of /proc/<pid>/stat that follow the name.
FLAGS, THREADS, START_TIME = 6, 17, 19
PF_EXITING = 0x4
POLL_S = 0.02  # of ending processes: the kernel has no notification for an adopted grandchild
MAX_POLL_S = 0.5  # of ending processes, while none of them ends


def become_subreaper() -> None:
    """Make this process adopt every orphaned descendant, in place of init."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: object) -> None:
    """Set an attribute of this process (prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def read_processes() -> dict[int, tuple[int, int]]:
    """Return pid -> (parent, process group) of every live process; zombies are left out.

    A process whose main thread has ended looks like a zombie while its other threads run; it counts as alive.
    """
    found = ((pid, read_process(pid)) for pid in newest_first())
    return {pid: process for pid, process in found if process is not None}


def newest_first() -> list[int]:
    """Return all pids, newest first: a process that forks and exits would be gone by the end of a long list.

    The kernel counts pids up and starts over at the maximum, so those above the last one are the oldest.
    """
    pids = sorted((int(entry) for entry in os.listdir("/proc") if entry.isdigit()), reverse=True)
    last = _last_pid()
    return [pid for pid in pids if pid <= last] + [pid for pid in pids if pid > last]


def _last_pid() -> int:
    """Return the pid that the kernel assigned last; 0 if unknown."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[4])
    except (OSError, ValueError, IndexError):
        return 0


def read_process(pid: int) -> tuple[int, int] | None:
    """Return (parent, process group) of one process; None if it is dead or a zombie."""
    fields = read_stat(pid)
    return (int(fields[1]), int(fields[2])) if is_alive(fields) else None


def is_alive(fields: list[bytes]) -> bool:
    """Whether the process with these fields of its stat file is alive; a zombie is not."""
    return bool(fields) and (fields[0] not in (b"Z", b"X") or int(fields[THREADS]) > 1)


def is_leaving(pid: int) -> bool:
    """Whether the process is dead or exiting: its descriptors are closed before it counts as dead."""
    fields = read_stat(pid)
    return not fields or bool(int(fields[FLAGS]) & PF_EXITING)


def read_stat(pid: int, thread: int | None = None) -> list[bytes]:
    """Return the fields of the stat file of a process or thread, from the state on; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def read_proc_file(path: str) -> str:
    """Return the text of a file of /proc; empty if it is unreadable or missing, as after the end of its process."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is no such process.

    A pid together with its start time identifies a process: the kernel gives pids out again.
    """
    fields = read_stat(pid)
    return int(fields[START_TIME]) if fields else None


def own_children() -> list[int]:
    """Return the children of this single-threaded process; empty if the kernel has no list of them."""
    return _children_of_thread("thread-self") or []


def _children_of_thread(thread: str) -> list[int] | None:
    """Return the children of a thread, which may be zombies; None if it has ended, or the kernel has no such list.

    The kernel may leave out a child while another one ends.
    """
    try:
        with open(f"/proc/{thread}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return None


def own_descendants() -> dict[int, tuple[int, int]]:
    """Return pid -> (parent, process group) of the live descendants of this process, nearest first.

    Reads the lists of children, not all processes of the machine, unless the kernel has no such lists. One that is
    forked or orphaned meanwhile may be missing.
    """
    if _children_of_thread("thread-self") is None:
        processes = read_processes()
        return {pid: processes[pid] for pid in descendants(os.getpid(), processes)}
    found: dict[int, tuple[int, int]] = {}
    parents = [os.getpid()]
    for parent in parents:  # grows while we walk it
        for pid in _children(parent):
            process = read_process(pid)
            if process is not None and pid not in found:
                found[pid] = process
                parents.append(pid)
    return found


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in _children_of_thread(f"{pid}/task/{thread}") or ()]


def kill_is_pending(pid: int) -> bool:
    """Whether the process was killed (or a TERM ends it) and has not ended yet: it never runs its own code again."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            masks = [line.split()[1] for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except OSError:
        return False
    return any(int(mask, 16) & 1 << (signal.SIGKILL - 1) for mask in masks)


def descendants(root: int, processes: dict[int, tuple[int, int]] | None = None) -> list[int]:
    """Return every live descendant of `root`, nearest first."""
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
    """KILL all descendants of this process once; return the killed pids, and those that may not be signalled.

    `before` receives all of them before the KILL. Their groups are killed too: the kernel kills a group in one step,
    while a process that keeps forking and exiting is often gone when the list of pids has been read.
    """
    processes = own_descendants()
    found = [pid for pid in processes if pid not in spared]
    before(found)
    foreign = [pid for pid in found if not send_signal(pid, signal.SIGKILL)]
    kill_groups(processes[pid][1] for pid in found)
    return [pid for pid in found if pid not in foreign], foreign


def kill_groups(groups: Iterable[int]) -> None:
    """KILL these groups."""
    signal_groups(groups, signal.SIGKILL)


def signal_groups(groups: Iterable[int], signum: int) -> None:
    """Send a signal to these groups, but not to the group of this process."""
    # 0 would mean this group, and 1 all processes: a child in another pid namespace may show such a number.
    for group in set(groups) - {0, 1, os.getpgrp()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signum)


def ended_child() -> int | None:
    """Return a child that waits to be reaped; None if all live. Raises ChildProcessError if there are no children.

    Until it is reaped, its pid and group are not reused, so its group can be killed safely. This finds the successors
    of a process that keeps forking and exiting.
    """
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None if ended is None else ended.si_pid


def send_signal(pid: int, signum: int) -> bool:
    """Send a signal; False if that is not permitted: a set-user-id program runs as another user."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True
