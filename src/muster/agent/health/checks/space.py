"""Free space: of the disk with temporary files, of memory, and of /dev/shm."""

from __future__ import annotations

import os
import re

from muster.agent.health.checks.finding import CheckedNode, Finding, failed, passed, skipped

SHARED_MEMORY = "/dev/shm"
MEMORY_INFO = "/proc/meminfo"


def check_disk(node: CheckedNode, threshold: float) -> Finding:
    return judge_filesystem(node.temp_dir, os.statvfs(node.temp_dir), threshold)


def check_shared_memory(node: CheckedNode, threshold: float) -> Finding:
    if not os.path.isdir(SHARED_MEMORY):
        return skipped(f"there is no {SHARED_MEMORY}")
    return judge_filesystem(SHARED_MEMORY, os.statvfs(SHARED_MEMORY), threshold)


def check_memory(node: CheckedNode, threshold: float) -> Finding:
    with open(MEMORY_INFO, encoding="ascii", errors="replace") as file:
        return judge_memory(file.read(), threshold)


def judge_filesystem(path: str, stat: os.statvfs_result, least: float) -> Finding:
    """Judge the free space, and the free inodes where the filesystem counts them."""
    free = stat.f_bavail * stat.f_frsize
    if free < least:
        return failed(f"{path} has only {show_bytes(free)} of free space, less than {show_bytes(least)}")
    if stat.f_files > 0 and stat.f_favail == 0:
        return failed(f"{path} has no free inode")
    return passed(f"{show_bytes(free)} are free")


def judge_memory(meminfo: str, least: float) -> Finding:
    """Judge the available memory in the text of /proc/meminfo."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if found is None:
        return skipped("the kernel does not count available memory")
    available = int(found[1]) * 1024
    if available < least:
        return failed(f"only {show_bytes(available)} of memory are available, less than {show_bytes(least)}")
    return passed(f"{show_bytes(available)} are available")


def show_bytes(count: float) -> str:
    """Return a number of bytes for people.

    >>> show_bytes(0), show_bytes(3 << 20), show_bytes(1.5 * (1 << 30))
    ('0 B', '3 MiB', '1.5 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
