"""Finding, by a tag in its environment, what a scope has started when nobody keeps it any more.

Whatever runs in a scope has MUSTER_OWNER=<the scope's tag>; its supervisor has MUSTER_KEEPER=<tag>. A tag alone is no
proof: drivers hand their whole environment to processes that others start for them (Ray's workers). What we have lost
was orphaned and adopted; a copy has a living parent that is neither tagged nor an adopter, and is left alone. A
supervisor is never ended: it ends its own when its owner is gone.

Not found is who has emptied its environment and has left its group and its parent.
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
from muster.process.unkillable import Dying

OWNER_VARIABLE, SUPERVISOR_VARIABLE = "MUSTER_OWNER", "MUSTER_KEEPER"
NOBODY = (0, 1)  # parents of orphans: outside this namespace, init
LOOKS = 3  # without a find: one look misses who is forked, and whose parent leaves, while the list is read
# The same for looks in which other processes ended or executed a program: any of these may have been the scope's, with
# a successor that is in no list. More looks, since each misses such a chain of processes with even odds on a busy
# machine; not without a limit, since on a large node some process ends during every look.
UNSETTLED_LOOKS = 50
NO_ENVIRONMENT = b"\0\0"  # of a process that has none, in the form that read_environment returns
VSIZE, ENV_START = 20, 47  # indices of the memory's size and the environment's address, as in proctree.FLAGS


@dataclass(frozen=True)
class Swept:
    """What a sweep has ended, who is left (not ours to signal, or not gone in time), and all that it found."""

    ended: int
    left: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()


def new_tag() -> str:
    return os.urandom(8).hex()


@dataclass(frozen=True)
class Look:
    """One pass over all processes: pid -> (parent, group) and environment of each live one.

    `ended` were listed and have ended, or were about to: their environment could not be read. `executing` are about to
    become another program: between the old memory and the new arguments, the kernel shows no environment.
    """

    processes: dict[int, tuple[int, int]]
    environments: dict[int, bytes]
    ended: frozenset[int]
    executing: frozenset[int]

    def is_settled(self, before: Look | None) -> bool:
        """Whether no process can have been missed. One that had ended before the last look hides no successor."""
        return before is not None and not self.executing and self.ended <= before.ended


def find_tagged(tag: str, *, groups: Collection[int] = (), adopters: Collection[int] = ()) -> dict[int, int]:
    """pid -> group of a scope's live processes, by its tag; also those in groups known to be its, and all below them.

    `adopters`: who may have adopted its orphans, besides init, this process and supervisors.
    """
    return select_tagged(read_all(), tag, groups, adopters)


def select_tagged(look: Look, tag: str, groups: Collection[int], adopters: Collection[int]) -> dict[int, int]:
    """Select the scope's processes from those of one look; see find_tagged."""
    processes, environments = look.processes, look.environments
    supervisors = {pid for pid, text in environments.items() if f"\0{SUPERVISOR_VARIABLE}=".encode() in text}
    mark = f"\0{OWNER_VARIABLE}={tag}\0".encode()
    tagged = {pid for pid, text in environments.items() if mark in text} - supervisors
    foster = {*NOBODY, os.getpid(), *adopters, *supervisors}

    def is_ours(pid: int) -> bool:
        while pid in tagged:
            pid = processes[pid][0]
        # An ended one has just died, and its children have another parent by now.
        return pid in foster or pid not in processes or pid in look.ended

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
) -> Swept:
    """TERM, grace, KILL, until no process of the scope is left that KILL could end, or so many seconds have passed."""
    start = time.monotonic()
    found, dying = OrphanScan(), Dying()
    seen_groups: set[int] = set()
    before: Look | None = None
    settled = unsettled = 0  # looks without a find since the last find
    try:
        while settled < LOOKS and unsettled < UNSETTLED_LOOKS:
            look = read_all()
            now_found = select_tagged(look, tag, groups, adopters)
            targets = found.confirm(now_found)
            if now_found or targets:
                settled = unsettled = 0
            elif look.is_settled(before):
                settled += 1
            else:
                unsettled += 1
            before = look
            passed = time.monotonic() - start
            if passed < grace:
                reached = waited_for = [handle for handle in targets if found.ask(handle)]
            else:
                dying.note(handle.pid for handle in targets)
                reached = [handle for handle in targets if handle.send(signal.SIGKILL)]
                # Not only with targets: one that forks and leaves, again and again, is never found a second time, but
                # its group is.
                if targets or seen_groups.intersection(now_found.values()):
                    kill_groups(now_found.values())
                if targets:
                    groups = ()  # their numbers may be another's from now on
                hanging = dying.hanging(handle.pid for handle in reached)
                waited_for = [handle for handle in reached if handle.pid not in hanging]
            seen_groups.update(now_found.values())
            if passed >= within or (targets and not waited_for):
                return Swept(len(found.handles) - len(now_found), tuple(now_found), tuple(found.handles))
            wait_for_one(targets, POLL_S if targets else 0)
        return Swept(len(found.handles), pids=tuple(found.handles))
    finally:
        found.release()


class OrphanScan:
    """Who was found. One is a target from the second time on: its handle was opened in between, and means no other."""

    def __init__(self) -> None:
        self.handles: dict[int, ProcessHandle] = {}
        self._targets: set[int] = set()
        self._asked: set[int] = set()

    def confirm(self, pids: Iterable[int]) -> list[ProcessHandle]:
        """All targets that live, also those that are not found any more: a program without a tag whose parent went."""
        for pid in pids:
            if pid in self.handles and not self.handles[pid].gone:
                self._targets.add(pid)
            else:
                self.handles[pid] = ProcessHandle(pid)
                self._targets.discard(pid)
        return [self.handles[pid] for pid in self._targets if not self.handles[pid].gone]

    def ask(self, handle: ProcessHandle) -> bool:
        """TERM, once."""
        if handle.pid in self._asked:
            return True
        self._asked.add(handle.pid)
        return handle.send(signal.SIGTERM)

    def release(self) -> None:
        for handle in self.handles.values():
            handle.release()


def await_copies(tag: str, seconds: float) -> None:
    """Wait for those that still write a lost scope's captured output: they end once they have written all of it."""
    deadline = time.monotonic() + seconds
    mark = f"\0{SUPERVISOR_VARIABLE}={tag}\0".encode()
    while any(mark in read_environment(pid) for pid in newest_first()) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def read_all() -> Look:
    """Read every process, and its environment in the same moment."""
    processes, environments = {}, {}
    ended, executing = set(), set()
    for pid in newest_first():
        environment, fields = read_environment(pid), read_stat(pid)
        if environment == NO_ENVIRONMENT and fields and int(fields[ENV_START]):
            environment = read_environment(pid)  # its program was executed in between
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
    return Look(processes, environments, frozenset(ended), frozenset(executing))


def read_environment(pid: int) -> bytes:
    """With a zero byte on either side of every variable; empty for another user's, and for one that has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"\0" + file.read() + b"\0"
    except OSError:
        return b""
