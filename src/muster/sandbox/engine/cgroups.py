"""Cgroups of workers, where the service may make them: memory and processes of a whole tree, counted by the kernel.

Version 1: a directory in the hierarchy of each controller. Version 2: one directory, below a group that has no
processes of its own. Which one there is, and whether we may, is found by trying.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

REMOVAL_S = 2.0
OF_WORKER_MB = 64  # beyond the limit of programs: the worker itself and the kernel's own


@dataclass(frozen=True)
class Parent:
    """Where the groups of workers are made: controller -> directory; with version 2, the same one for both."""

    directories: dict[str, str]
    version: int


class WorkerCgroup:
    """One worker's."""

    def __init__(self, directories: list[str], memory: str, events: str) -> None:
        self.directories = directories
        self._events = os.open(f"{memory}/{events}", os.O_RDONLY | os.O_CLOEXEC)  # read after every program
        self._killed = self._count()

    def had_to_kill(self) -> bool:
        """Whether the kernel killed for want of memory since the last time."""
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

    def close(self) -> None:
        """It counts no more."""
        os.close(self._events)
        self._events = -1


def find_parent() -> Parent | None:
    """A place for our groups, or None where we may not have one."""
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


def make(parent: Parent, name: str, memory_mb: int, processes: int) -> WorkerCgroup:
    """A group with these limits."""
    places = {kind: f"{directory}/{name}" for kind, directory in parent.directories.items()}
    for place in dict.fromkeys(places.values()):
        os.mkdir(place)
    memory = (memory_mb + OF_WORKER_MB) << 20
    if parent.version == 1:
        _write(f"{places['memory']}/memory.limit_in_bytes", memory)
        _write(f"{places['pids']}/pids.max", processes + 2)
        return WorkerCgroup(list(places.values()), places["memory"], "memory.oom_control")
    _write(f"{places['memory']}/memory.max", memory)
    with contextlib.suppress(OSError):
        _write(f"{places['memory']}/memory.swap.max", 0)
    _write(f"{places['memory']}/pids.max", processes + 2)
    return WorkerCgroup([places["memory"]], places["memory"], "memory.events")


def remove_parent(parent: Parent) -> None:
    remove(dict.fromkeys(parent.directories.values()))


def remove(directories: Iterable[str]) -> None:
    """When their processes are gone, which may take a moment."""
    end = time.monotonic() + REMOVAL_S
    for directory in directories:
        while os.path.isdir(directory):
            try:
                os.rmdir(directory)
            except OSError:
                if time.monotonic() > end:
                    return
                time.sleep(0.01)


def _version_1() -> Parent:
    ours = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            ours.update(dict.fromkeys(controllers.split(","), path))
    name = f"muster-sandbox-{os.getpid()}-{secrets.token_hex(3)}"
    directories = {}
    mounts = dict(_mounts("cgroup"))
    for kind in ("memory", "pids"):
        where = next(place for place, options in mounts.items() if kind in options)
        directories[kind] = f"{where}{ours[kind].rstrip('/')}/{name}"
    parent = Parent(directories, 1)
    try:
        for directory in directories.values():
            os.mkdir(directory)
    except OSError:
        remove_parent(parent)
        raise
    return parent


def _version_2() -> Parent:
    """Beside our own group, since one with processes cannot hand controllers on."""
    with open("/proc/self/cgroup") as file:
        own = next(line.rstrip("\n").split(":", 2)[2] for line in file if line.startswith("0::"))
    where = next(place for place, _ in _mounts("cgroup2"))
    name = f"muster-sandbox-{os.getpid()}-{secrets.token_hex(3)}"
    directory = f"{where}{os.path.dirname(own).rstrip('/')}/{name}"
    os.mkdir(directory)
    try:
        _write(f"{directory}/cgroup.subtree_control", "+memory +pids")
    except OSError:
        os.rmdir(directory)
        raise
    return Parent({"memory": directory, "pids": directory}, 2)


def _mounts(kind: str) -> Iterable[tuple[str, list[str]]]:
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if after.split()[0] == kind:
                yield before.split()[4], after.split()[2].split(",")


def _write(path: str, value: object) -> None:
    with open(path, "w") as file:
        file.write(str(value))
