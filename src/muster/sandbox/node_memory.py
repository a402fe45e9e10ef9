"""The memory of this node, or of the container in which the server runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_LIMIT_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def available_bytes() -> int:
    """Return what programs can still use: the node's memory, or less if the server is in a cgroup with a limit."""
    found = _meminfo("MemAvailable")
    for limit, used, reclaimable in _cgroup_limits():
        found = min(found, limit - used + reclaimable)
    return found


def total_bytes() -> int:
    """Return the memory of the node, or of the server's cgroup if that is less."""
    return min([_meminfo("MemTotal"), *(limit for limit, _, _ in _cgroup_limits())])


def default_total_mb() -> int:
    """Return the share of all programs together: four fifths of the memory."""
    return max(256, total_bytes() * 4 // 5 >> 20)


def default_reserve_mb() -> int:
    """Return what is kept free for the rest of the node: a twentieth of the memory, at most 2 GB."""
    return max(64, min(2048, total_bytes() // 20 >> 20))


def _meminfo(name: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return sys.maxsize  # before Linux 3.14


def _cgroup_limits() -> Iterator[tuple[int, int, int]]:
    """Yield limit, usage and reclaimable file memory of our memory cgroup, if it has a limit."""
    for directory in _own_memory_cgroups():
        for limit_name, used_name in _LIMIT_FILES:
            with contextlib.suppress(OSError, ValueError):
                with open(f"{directory}/{limit_name}") as file:
                    limit = int(file.read())  # "max": ValueError
                with open(f"{directory}/{used_name}") as file:
                    used = int(file.read())
                if limit < _meminfo("MemTotal"):
                    yield limit, used, _inactive_files(directory)


def _inactive_files(directory: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"{directory}/memory.stat") as file:
        values = dict(line.split() for line in file)
        return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
    return 0


def _own_memory_cgroups() -> list[str]:
    """Return the directories of our memory cgroup, as a container and as a host see it."""
    found = []
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            top = {"": "/sys/fs/cgroup", "memory": "/sys/fs/cgroup/memory"}.get(controllers)
            if top is not None:
                found += [f"{top}{path.rstrip('/')}", top]
    return list(dict.fromkeys(found))
