"""Find the processes of a scope whose supervisor is lost, by a tag in their environment, and kill them.

Processes of a scope have MUSTER_OWNER=<the scope's tag>; its supervisor has MUSTER_KEEPER=<tag>. The tag is not
sufficient: drivers pass their environment to processes that others start for them (Ray's workers). Processes of a lost
scope were orphaned and adopted; a copy of the tag has a live parent that is neither tagged nor an adopter, and is
spared. Supervisors are spared, too: each ends its processes when its owner is gone.

Processes that cleared their environment and left both their group and their parent are not found.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from muster.process.pidfd import ProcessHandle, wait_for_one
from muster.process.proctree import (
    FLAGS,
    PF_EXITING,
    POLL_S,
    THREADS,
    descendants,
    is_alive,
    kill_groups,
    newest_first,
    read_stat,
)
from muster.process.unkillable import KillProgress

OWNER_VARIABLE, SUPERVISOR_VARIABLE = "MUSTER_OWNER", "MUSTER_KEEPER"
ORPHAN_PARENTS = (0, 1)  # outside this pid namespace, and init
SETTLED_SCANS = 3  # without a find: one scan misses a process that is forked while the list is read
# The same for scans during which processes ended or executed a program: each may have been the scope's, with a
# successor in no list. More scans, since each misses such a chain with even odds on a busy machine; with a limit, since
# on a large node some process ends during every scan.
UNSETTLED_SCANS = 50
NO_ENVIRONMENT = b"\0\0"  # result of read_environment for a process without variables
VSIZE, ENV_START = 20, 47  # indexes of vsize and env_start, as proctree.FLAGS


@dataclass(frozen=True)
class SweepResult:
    """The number of ended processes, those left (not permitted to signal, or not ended in time), and all found."""

    ended: int
    left: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()


def new_tag() -> str:
    return os.urandom(8).hex()


@dataclass(frozen=True)
class ProcessSnapshot:
    """One scan of all processes: pid -> (parent, group) and environment of each live one.

    `ended` were listed but have ended or were exiting: their environment could not be read. `executing` are in the
    middle of an exec, when the kernel shows no environment.
    """

    processes: dict[int, tuple[int, int]]
    environments: dict[int, bytes]
    ended: frozenset[int]
    executing: frozenset[int]

    def is_settled(self, before: ProcessSnapshot | None) -> bool:
        """Whether no process can have been missed. One that had ended before the last scan hides no successor."""
        return before is not None and not self.executing and self.ended <= before.ended


def find_tagged(tag: str, *, groups: Collection[int] = (), adopters: Collection[int] = ()) -> dict[int, int]:
    """Return pid -> group of a scope's live processes: those with its tag or in `groups`, and their descendants.

    `adopters` may have adopted its orphans, besides init, this process and supervisors.
    """
    return select_tagged(take_snapshot(), tag, groups, adopters)


def select_tagged(
    snapshot: ProcessSnapshot, tag: str, groups: Collection[int], adopters: Collection[int]
) -> dict[int, int]:
    """Select the scope's processes from a snapshot; see find_tagged."""
    processes, environments = snapshot.processes, snapshot.environments
    supervisors = {pid for pid, text in environments.items() if f"\0{SUPERVISOR_VARIABLE}=".encode() in text}
    mark = f"\0{OWNER_VARIABLE}={tag}\0".encode()
    tagged = {pid for pid, text in environments.items() if mark in text} - supervisors
    adoptive = {*ORPHAN_PARENTS, os.getpid(), *adopters, *supervisors}

    def is_ours(pid: int) -> bool:
        while pid in tagged:
            pid = processes[pid][0]
        # A parent that has just ended: its children have another parent by now.
        return pid in adoptive or pid not in processes or pid in snapshot.ended

    roots = {pid for pid in tagged if is_ours(pid)} | {pid for pid in processes if processes[pid][1] in groups}
    below = {child for root in roots for child in descendants(root, processes)}
    kept = {child for supervisor in below & supervisors for child in descendants(supervisor, processes)}
    return {pid: processes[pid][1] for pid in (roots | below - kept) - supervisors - {os.getpid()}}


def sweep_tagged(
    tag: str,
    *,
    groups: Collection[int] = (),
    adopters: Collection[int] = (),
    grace: float = 0.0,
    within: float = float("inf"),
) -> SweepResult:
    """Send TERM, wait for `grace`, KILL until only unkillable processes are left, or `within` seconds have passed."""
    start = time.monotonic()
    found, progress = OrphanScan(), KillProgress()
    seen_groups: set[int] = set()
    before: ProcessSnapshot | None = None
    settled = unsettled = 0  # scans since the last find
    try:
        while settled < SETTLED_SCANS and unsettled < UNSETTLED_SCANS:
            snapshot = take_snapshot()
            now_found = select_tagged(snapshot, tag, groups, adopters)
            targets = found.confirm(now_found)
            if now_found or targets:
                settled = unsettled = 0
            elif snapshot.is_settled(before):
                settled += 1
            else:
                unsettled += 1
            before = snapshot
            passed = time.monotonic() - start
            if passed < grace:
                reached = waited_for = [handle for handle in targets if found.send_term(handle)]
            else:
                progress.note(handle.pid for handle in targets)
                reached = [handle for handle in targets if handle.send(signal.SIGKILL)]
                # Also without targets: a process that keeps forking and exiting is never found twice, but its group is.
                if targets or seen_groups.intersection(now_found.values()):
                    kill_groups(now_found.values())
                if targets:
                    groups = ()  # their ids may be reused from now on
                hanging = progress.hanging(handle.pid for handle in reached)
                waited_for = [handle for handle in reached if handle.pid not in hanging]
            seen_groups.update(now_found.values())
            if passed >= within or (targets and not waited_for):
                return SweepResult(len(found.handles) - len(now_found), tuple(now_found), tuple(found.handles))
            wait_for_one(targets, POLL_S if targets else 0)
        return SweepResult(len(found.handles), pids=tuple(found.handles))
    finally:
        found.release()


class OrphanScan:
    """Processes found so far. One becomes a target when it is found again with an open handle, which identifies it."""

    def __init__(self) -> None:
        self.handles: dict[int, ProcessHandle] = {}
        self._targets: set[int] = set()
        self._terminated: set[int] = set()

    def confirm(self, pids: Iterable[int]) -> list[ProcessHandle]:
        """Return all live targets, including those no longer found: untagged programs whose parent has ended."""
        for pid in pids:
            if pid in self.handles and not self.handles[pid].gone:
                self._targets.add(pid)
            else:
                self.handles[pid] = ProcessHandle(pid)
                self._targets.discard(pid)
        return [self.handles[pid] for pid in self._targets if not self.handles[pid].gone]

    def send_term(self, handle: ProcessHandle) -> bool:
        """Send TERM once; False if that is not permitted."""
        if handle.pid in self._terminated:
            return True
        self._terminated.add(handle.pid)
        return handle.send(signal.SIGTERM)

    def release(self) -> None:
        for handle in self.handles.values():
            handle.release()


def wait_for_copiers(tag: str, seconds: float) -> None:
    """Wait for processes that still write a lost scope's captured output; they end when all of it is written."""
    deadline = time.monotonic() + seconds
    mark = f"\0{SUPERVISOR_VARIABLE}={tag}\0".encode()
    while any(mark in read_environment(pid) for pid in newest_first()) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def take_snapshot() -> ProcessSnapshot:
    """Read every process together with its environment."""
    processes, environments = {}, {}
    ended, executing = set(), set()
    for pid in newest_first():
        environment, fields = read_environment(pid), read_stat(pid)
        if environment == NO_ENVIRONMENT and fields and int(fields[ENV_START]):
            environment = read_environment(pid)  # an exec finished in between
        if not is_alive(fields):
            ended.add(pid)
            continue
        processes[pid], environments[pid] = (int(fields[1]), int(fields[2])), environment
        if OWNER_VARIABLE.encode() in environment:
            continue
        if int(fields[FLAGS]) & PF_EXITING and int(fields[THREADS]) == 1:  # else only its main thread may have ended
            ended.add(pid)
        elif environment == NO_ENVIRONMENT and int(fields[VSIZE]) and not int(fields[ENV_START]):
            executing.add(pid)
    return ProcessSnapshot(processes, environments, frozenset(ended), frozenset(executing))


def read_environment(pid: int) -> bytes:
    """Return the environment with a zero byte on both sides of every variable; empty if it is not readable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + file.read() + b"\0"
    except OSError:
        return b""
