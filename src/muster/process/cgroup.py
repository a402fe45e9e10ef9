"""Control groups: count OOM kills, and kill a whole group in one step. Part of the supervisor's program.

A scope that asks for a group gets one where cgroup version 2 permits it. Exceptions: not inside a group of Slurm, which
looks for a step's processes in its own groups; and not inside a group that has a limit, since a program that reads its
limits would not find them in the new group.

The creator of a group holds a lock (flock) on its directory, which the kernel releases when the creator ends, however
that happens. If nothing is left to remove a group, the next creator of a group in the same place does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

LIMITS = ("memory.max", "cpu.max")
UNLIMITED = "max"
SCOPE_PREFIX = "muster-scope-"
STALE_AGE_S = 10.0  # a younger group may not be locked yet


class Cgroup:
    """The group of a scope; without a directory all methods do nothing."""

    def __init__(self, directory: str | None = None, lock: int | None = None) -> None:
        """`lock` is what `lock_group` returned to the creator of the group."""
        self.directory, self.lock = directory, lock

    def enter(self) -> None:
        """Move this new process into the group, before exec. If that is not permitted, it stays outside."""
        with contextlib.suppress(OSError):
            _write(f"{self.directory}/cgroup.procs", "0")

    def kill(self) -> bool:
        """KILL all processes of the group, of any user; return whether one is still exiting."""
        if self.directory is None:
            return False
        with contextlib.suppress(OSError):
            _write(f"{self.directory}/cgroup.kill", "1")
        return "populated 1" in _read(f"{self.directory}/cgroup.events")

    def remove(self) -> None:
        """Remove the group and those of inner scopes. A process that is left in one prevents its removal."""
        for directory, _, _ in os.walk(self.directory, topdown=False) if self.directory else ():
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def make_cgroup(name: str) -> Cgroup:
    """Create a group below that of this process, and lock it; without a directory if that is not possible."""
    base = own_directory("")
    if base is None or not may_have_children(base):
        return Cgroup()
    remove_stale_groups(base, SCOPE_PREFIX)
    directory = os.path.join(base, group_name(SCOPE_PREFIX, name))
    try:
        os.mkdir(directory)
        made = Cgroup(directory, lock_group(directory))
    except OSError:
        return Cgroup()
    if not os.access(f"{made.directory}/cgroup.kill", os.W_OK):  # the kernel is older than 5.14
        made.remove()
        return Cgroup()
    return made


def group_name(prefix: str, unique: str) -> str:
    """Return the name of a group with its creator: the pid and, since other containers reuse pids, its namespace."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{prefix}{namespace}-{os.getpid()}-{unique}"


def lock_group(directory: str) -> int:
    """Lock a group; return the descriptor that holds the lock. Raises OSError if another process holds it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def is_stale(directory: str) -> bool:
    """Whether the creator of a group of this user has ended."""
    try:
        found = os.stat(directory)
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime < STALE_AGE_S:
            return False
        os.close(lock_group(directory))
    except OSError:
        return False
    return True


def remove_stale_groups(base: str, prefix: str) -> None:
    """Remove groups whose creator has ended, with the groups below; one with a process is not removed."""
    try:
        names = os.listdir(base)
    except OSError:
        return
    for name in names:
        if name.startswith(prefix) and name[len(prefix) :].count("-") == 2 and is_stale(f"{base}/{name}"):
            Cgroup(f"{base}/{name}").remove()


def may_have_children(base: str) -> bool:
    """Whether a child group does no harm here. Whether it can be created is not checked."""
    of_slurm = any(part.startswith("slurm") for part in base.split("/"))
    limited = any(_read(f"{base}/{name}").split()[:1] not in ([], [UNLIMITED]) for name in LIMITS)
    return not of_slurm and not limited and os.access(f"{base}/cgroup.procs", os.W_OK)


def own_directory(controller: str) -> str | None:
    """Return the directory of this process's group for a version 1 controller, for "" that of version 2."""
    mounts = [line.split() for line in _read("/proc/self/mounts").splitlines()]
    kind = "cgroup" if controller else "cgroup2"
    mount = next((m[1] for m in mounts if m[2] == kind and (not controller or controller in m[3].split(","))), None)
    for line in _read("/proc/self/cgroup").splitlines() if mount else ():
        _, controllers, path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            directory = str(mount) + path.rstrip("/")
            return directory if os.path.isdir(directory) else mount  # the path is outside this namespace
    return None


def oom_counter() -> str | None:
    """Return the file that counts OOM kills: of this group if there is one, else of the machine."""
    two, one = own_directory(""), own_directory("memory")
    places = [f"{two}/memory.events", f"{one}/memory.oom_control", "/proc/vmstat"]
    return next((place for place in places if "oom_kill " in _read(place)), None)


def oom_kills(counter: str | None) -> int:
    """Return the number of OOM kills so far."""
    for line in _read(counter).splitlines() if counter else ():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
