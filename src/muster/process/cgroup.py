"""What control groups tell and do: kills for want of memory, and the end of a whole group in one step.

Part of the supervisor's program. A group of its own is made for a scope that wants one where that is allowed: in
version 2, by whoever may write there. Never inside Slurm's: it looks for a step's processes in the groups that it made
itself. Nor where this group has a limit of its own: a program that looks for its limits would not find them any more.
"""

from __future__ import annotations

import contextlib
import os

LIMITS = ("memory.max", "cpu.max")
UNLIMITED = "max"
PREFIX = "muster-"


class Cgroup:
    """A scope's own group; with none, nothing here does anything."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory

    def enter(self) -> None:
        """Called by a new process before it becomes the program. If it may not, it stays outside."""
        with contextlib.suppress(OSError):
            _write(f"{self.directory}/cgroup.procs", "0")

    def kill(self) -> bool:
        """KILL all in it, of whatever user; return whether a process is still in it, on its way out."""
        if self.directory is None:
            return False
        with contextlib.suppress(OSError):
            _write(f"{self.directory}/cgroup.kill", "1")
        return "populated 1" in _read(f"{self.directory}/cgroup.events")

    def remove(self) -> None:
        """With those that scopes inside it have made. Somebody who is left keeps it from being removed."""
        for directory, _, _ in os.walk(self.directory, topdown=False) if self.directory else ():
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def make_cgroup(name: str) -> Cgroup:
    """A group below this process's own, or none."""
    base = own_directory("")
    if base is None or not may_have_children(base):
        return Cgroup()
    made = Cgroup(os.path.join(base, PREFIX + name))
    try:
        os.mkdir(str(made.directory))
    except OSError:
        return Cgroup()
    if not os.access(f"{made.directory}/cgroup.kill", os.W_OK):  # the kernel is older than 5.14
        made.remove()
        return Cgroup()
    return made


def may_have_children(base: str) -> bool:
    """Whether a group below this one disturbs nobody; that it can be made is seen by making it."""
    of_slurm = any(part.startswith("slurm") for part in base.split("/"))
    limited = any(_read(f"{base}/{name}").split()[:1] not in ([], [UNLIMITED]) for name in LIMITS)
    return not of_slurm and not limited and os.access(f"{base}/cgroup.procs", os.W_OK)


def own_directory(controller: str) -> str | None:
    """Where this process's group of a version 1 controller is seen; of version 2 for the empty name."""
    mounts = [line.split() for line in _read("/proc/self/mounts").splitlines()]
    kind = "cgroup" if controller else "cgroup2"
    mount = next((m[1] for m in mounts if m[2] == kind and (not controller or controller in m[3].split(","))), None)
    for line in _read("/proc/self/cgroup").splitlines() if mount else ():
        _, controllers, path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            directory = str(mount) + path.rstrip("/")
            return directory if os.path.isdir(directory) else mount  # seen from outside its namespace
    return None


def oom_counter() -> str | None:
    """The file that counts the kills for want of memory: of this group if there is one, else of the machine."""
    two, one = own_directory(""), own_directory("memory")
    places = [f"{two}/memory.events", f"{one}/memory.oom_control", "/proc/vmstat"]
    return next((place for place in places if "oom_kill " in _read(place)), None)


def oom_kills(counter: str | None) -> int:
    """How many there have been so far."""
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
