"""Cgroups of workers, where the service may create them: the kernel counts memory and processes of a whole tree.

They also divide processor time: every worker has the same share however many processes its program starts, and all
workers together have the share of one process on each CPU, so that the server keeps the other half of the CPU it needs.

Version 1: a directory in the hierarchy of each controller. Version 2: one directory, below a group without processes.
Which version the node has, and whether we may use it, is found by trying.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.process.cgroup import group_name, lock_group, remove_stale_groups

PREFIX = "muster-sandbox-"
REMOVAL_TIMEOUT_S = 2.0
MAX_TCP_MEMORY_BYTES = 64 << 20  # of a program: all of the host's connections share what the kernel allows
WORKER_OVERHEAD_MB = 64  # beyond the limit of programs, for the worker itself and the kernel
# File, weight of a single process (and of a group of one), and the largest weight, by cgroup version.
CPU_WEIGHTS = {1: ("cpu.shares", 1024, 262_144), 2: ("cpu.weight", 100, 10_000)}


@dataclass(frozen=True)
class ParentCgroup:
    """The directory below which workers' groups are created, per controller; with version 2, the same for all."""

    directories: dict[str, str]
    version: int
    locks: list[int] = field(default_factory=list)  # descriptors that show others that this process lives


class WorkerCgroup:
    """The cgroup of one worker."""

    def __init__(self, directories: list[str], memory: str, events: str, usage: str) -> None:
        self.directories = directories
        self._usage = f"{memory}/{usage}"
        self._events = os.open(f"{memory}/{events}", os.O_RDONLY | os.O_CLOEXEC)  # read after every program
        self._killed = self._count()

    def has_oom_killed(self) -> bool:
        """Return whether the kernel killed a process for lack of memory since the last call."""
        before, self._killed = self._killed, self._count()
        return self._killed > before

    def _count(self) -> int:
        if self._events == -1:
            return self._killed
        for line in os.pread(self._events, 4096, 0).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        return 0

    def memory(self) -> int:
        """Return the bytes that the group uses; 0 if it is gone."""
        try:
            with open(self._usage) as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def close(self) -> None:
        os.close(self._events)
        self._events = -1


def find_parent() -> ParentCgroup | None:
    """Return a parent for workers' groups; None where we may not create one."""
    for attempt in (_version_1, _version_2):
        with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):
            parent = attempt()
            try:
                tried = make(parent, "try", 64, 8)
                tried.close()
                remove(tried.directories)
                return parent
            except BaseException:
                remove([f"{directory}/try" for directory in parent.directories.values()])
                remove_parent(parent)
                raise
    return None


def make(parent: ParentCgroup, name: str, memory_mb: int, processes: int) -> WorkerCgroup:
    """Create a group with these limits."""
    groups = {kind: f"{directory}/{name}" for kind, directory in parent.directories.items()}
    for group in dict.fromkeys(groups.values()):
        os.mkdir(group)
    memory = (memory_mb + WORKER_OVERHEAD_MB) << 20
    if parent.version == 1:
        _write(f"{groups['memory']}/memory.limit_in_bytes", memory)
        with contextlib.suppress(OSError):  # of the buffers of connections, which version 1 counts separately
            _write(f"{groups['memory']}/memory.kmem.tcp.limit_in_bytes", min(memory, MAX_TCP_MEMORY_BYTES))
        _write(f"{groups['pids']}/pids.max", processes + 2)
        return WorkerCgroup(list(groups.values()), groups["memory"], "memory.oom_control", "memory.usage_in_bytes")
    _write(f"{groups['memory']}/memory.max", memory)
    with contextlib.suppress(OSError):
        _write(f"{groups['memory']}/memory.swap.max", 0)
    _write(f"{groups['memory']}/pids.max", processes + 2)
    return WorkerCgroup([groups["memory"]], groups["memory"], "memory.events", "memory.current")


def limit_memory(parent: ParentCgroup, memory_mb: int) -> None:
    """Limit the memory of all workers together; best effort, since the memory guard watches it too."""
    name = "memory.limit_in_bytes" if parent.version == 1 else "memory.max"
    with contextlib.suppress(OSError):
        _write(f"{parent.directories['memory']}/{name}", memory_mb << 20)


def share_cpus(parent: ParentCgroup) -> None:
    """Give all workers together the share of one process on each CPU. Their own shares are equal by default."""
    name, weight, largest = CPU_WEIGHTS[parent.version]
    if "cpu" in parent.directories:
        _write(f"{parent.directories['cpu']}/{name}", min(largest, weight * (os.cpu_count() or 1)))


def remove_parent(parent: ParentCgroup) -> None:
    """Remove the groups and release their locks."""
    for directory in dict.fromkeys(parent.directories.values()):
        with contextlib.suppress(OSError):  # groups of workers whose processes took long to exit
            remove(entry.path for entry in os.scandir(directory) if entry.is_dir())
        remove([directory])
    while parent.locks:  # a second call closes no descriptor that has its number by then
        os.close(parent.locks.pop())


def remove(directories: Iterable[str]) -> None:
    """Remove the groups as soon as their processes are gone, for up to REMOVAL_TIMEOUT_S."""
    end = time.monotonic() + REMOVAL_TIMEOUT_S
    for directory in directories:
        while os.path.isdir(directory):
            try:
                os.rmdir(directory)
            except OSError:
                if time.monotonic() > end:
                    return
                time.sleep(0.01)


def _version_1() -> ParentCgroup:
    ours = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            ours.update(dict.fromkeys(controllers.split(","), path))
    name = group_name(PREFIX, secrets.token_hex(3))
    directories = {}
    mounts = dict(_mounts("cgroup"))
    for kind in ("memory", "pids", "cpu"):
        where = next((path for path, options in mounts.items() if kind in options), None)
        if where is not None or kind != "cpu":
            directories[kind] = f"{where}{ours[kind].rstrip('/')}/{name}"
    locks: list[int] = []
    try:
        for directory in directories.values():
            locks.append(_make_locked(directory))
        share_cpus(ParentCgroup(directories, 1))
    except OSError:
        remove_parent(ParentCgroup(directories, 1, locks))
        raise
    return ParentCgroup(directories, 1, locks)


def _version_2() -> ParentCgroup:
    """Create the parent beside our own group: a group with processes cannot delegate controllers."""
    with open("/proc/self/cgroup") as file:
        own = next(line.rstrip("\n").split(":", 2)[2] for line in file if line.startswith("0::"))
    where = next(path for path, _ in _mounts("cgroup2"))
    name = group_name(PREFIX, secrets.token_hex(3))
    directory = f"{where}{os.path.dirname(own).rstrip('/')}/{name}"
    parent = ParentCgroup({"memory": directory, "pids": directory}, 2, [_make_locked(directory)])
    try:
        _write(f"{directory}/cgroup.subtree_control", "+memory +pids")
    except OSError:
        remove_parent(parent)
        raise
    with contextlib.suppress(OSError):  # not delegated to us, or the node has real-time processes
        _write(f"{directory}/cgroup.subtree_control", "+cpu")
        parent.directories["cpu"] = directory
        share_cpus(parent)
    return parent


def _make_locked(directory: str) -> int:
    """Create the group and return its lock. Groups of servers that were killed are removed first."""
    remove_stale_groups(os.path.dirname(directory), PREFIX)
    os.mkdir(directory)
    return lock_group(directory)


def _mounts(kind: str) -> Iterable[tuple[str, list[str]]]:
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if after.split()[0] == kind:
                yield before.split()[4], after.split()[2].split(",")


def _write(path: str, value: object) -> None:
    with open(path, "w") as file:
        file.write(str(value))
