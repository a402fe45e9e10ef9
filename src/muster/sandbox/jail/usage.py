"""The memory of a process tree where no cgroup counts it: resident memory, and what residency does not show.

Shared memory may belong to nobody's resident set (another process wrote it, or it was given back with madvise), so that
shared anonymous mappings count with their whole size. The kernel's buffers of sockets belong to no process: each socket
counts with the most that it can hold.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from muster.sandbox.jail.tree import children_of

SOCKET_BYTES = 2 * 212_992  # the kernel's default limit of a socket's buffer; its bookkeeping takes as much again
FREE_SOCKETS = 32  # that do not count: an event loop has two
SHARED_ANONYMOUS = b"/dev/zero (deleted)"
MANY_PAGES = (64 << 20) // 4096  # a smaller address space beyond the first is not searched for shared mappings


def tree_below(pid: int) -> list[int]:
    """Return every process below this one, nearest first."""
    found = children_of(pid)
    for one in found:  # it grows during the iteration
        found.extend(children_of(one))
    return found


def resident(pid: int) -> tuple[int, int]:
    """Return the process's resident anonymous and shared memory in bytes, without that of files."""
    private = shared = 0
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"RssAnon:"):
                private = int(line.split()[1]) * 1024
            elif line.startswith(b"RssShmem:"):
                shared = int(line.split()[1]) * 1024
    return private, shared


def pages_of(pid: int) -> int:
    """Return the size of the process's address space in pages."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[0])
    return 0


def memory_of_tree(processes: Iterable[int], least_pages: int, least_resident: int, sockets: int) -> int:
    """Return the bytes that the processes use; the first two numbers are those of the worker they were forked from."""
    private = shared = 0
    mapped: dict[bytes, int] = {}
    for pid in processes:
        own, common = resident(pid)
        private += max(0, own - least_resident)
        shared += common
        if pages_of(pid) > least_pages + MANY_PAGES:
            for inode, size in shared_mappings(pid).items():
                mapped[inode] = max(size, mapped.get(inode, 0))
    return private + max(shared, sum(mapped.values())) + max(0, sockets - FREE_SOCKETS) * SOCKET_BYTES


def shared_mappings(pid: int) -> dict[bytes, int]:
    """Return the bytes of each shared anonymous mapping, by inode."""
    found: dict[bytes, int] = {}
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            if line.rstrip().endswith(SHARED_ANONYMOUS):
                span, _, _, _, inode = line.split(None, 5)[:5]
                first, _, last = span.partition(b"-")
                found[inode] = found.get(inode, 0) + int(last, 16) - int(first, 16)
    return found


def sockets_of_namespace(pid: int | str) -> int:
    """Return the number of sockets in the network namespace of a process."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/net/sockstat", "rb") as file:
        return int(file.readline().split()[2])
    return 0


def sockets_of_processes(processes: Iterable[int], files_limit: int) -> int:
    """Return the number of sockets that are open in the processes; `files_limit` for one that cannot be read."""
    total = 0
    for pid in processes:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except FileNotFoundError:
            continue  # it has ended
        except OSError:
            total += files_limit
            continue
        for name in names:
            with contextlib.suppress(OSError):
                total += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return total


def cpu_of(processes: Iterable[int]) -> float:
    """Return the CPU seconds of the processes and of their children that have ended."""
    ticks = 0
    for pid in processes:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
