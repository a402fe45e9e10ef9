"""Inside a gVisor sandbox: the worker is its first process and stays its root; programs have another user.

The root of a sandbox has rights in this sandbox only. A program, which has another user and no capability, can neither
signal nor trace the worker, whatever the sandbox's kernel supports of the mechanisms of the other levels: it has no
Landlock, does not protect its first process from signals of the same user, and does not enforce RLIMIT_DATA.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from contextlib import suppress

from muster.sandbox.jail import kernel

# To become another user, to end its processes, and to empty what it has left.
WORKER_CAPABILITIES = ("SETUID", "SETGID", "KILL", "DAC_OVERRIDE", "FOWNER")
CLOCK_MARGIN_S = 0.02  # the estimate of the engine's clock must not be late: an interrupt would seem to be early

_offset_s = 0.0
_is_inside = False  # whether this process is a program in a sandbox


class ProgramUser:
    """The rules of an execution: it becomes an ordinary user for good."""

    def __init__(self, user: int) -> None:
        self._user = user

    def enforce(self) -> None:
        """Change the user of this process."""
        global _is_inside
        _is_inside = True
        os.setgroups([])
        os.setresgid(self._user, self._user, self._user)
        os.setresuid(self._user, self._user, self._user)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # the change of the user took it away


def limit_address_space(more: int) -> None:
    """Allow this process as many bytes of address space more than it has, in a sandbox: RLIMIT_DATA limits none there.

    It is not for programs that reserve address space which they do not use, as JavaScript and Java do.
    """
    if _is_inside:
        with open("/proc/self/statm", "rb") as file:
            value = int(file.read().split()[0]) * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (value, value))


def used_memory() -> int:
    """Return the bytes of memory and files in memory that are in use in this sandbox."""
    total = free = 0
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemTotal:"):
                total = int(line.split()[1]) * 1024
            elif line.startswith(b"MemFree:"):
                free = int(line.split()[1]) * 1024
                break
    return total - free


def count_buffers(processes: Iterable[int], files_limit: int) -> int:
    """Return how many sockets and pipes the processes have; `files_limit` for a process that cannot be read.

    The kernel of a sandbox does not count their buffers, which are in its own memory.
    """
    found: set[str] = set()
    unread = 0
    for pid in processes:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except FileNotFoundError:
            continue  # it has ended
        except OSError:
            unread += files_limit
            continue
        for name in names:
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return unread + sum(one.startswith(("socket:", "pipe:")) for one in found)


def clock_difference() -> float:
    """Return the difference of the monotonic clock and the time of day: both sides have the same time of day."""
    return time.monotonic() - time.time()


def set_clock(engine_difference: float) -> None:
    """Align `engine_time` with the engine: the monotonic clock of a sandbox starts when it does."""
    global _offset_s
    _offset_s = engine_difference - clock_difference() + CLOCK_MARGIN_S


def engine_time() -> float:
    """Return the time of the engine's monotonic clock."""
    return time.monotonic() + _offset_s
