"""Free disk, memory and shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from muster.agent.health.checks import space
from muster.agent.health.checks.finding import CheckedNode, Verdict, failed

MEMINFO = "MemTotal:       527965376 kB\nMemFree:         1234 kB\nMemAvailable:   2048 kB\n"
FULL = os.statvfs_result((4096, 4096, 1000, 0, 0, 1000, 10, 10, 0, 255))
NO_INODES = os.statvfs_result((4096, 4096, 1000, 500, 500, 1000, 0, 0, 0, 255))
WITHOUT_INODES = os.statvfs_result((4096, 4096, 1000, 500, 500, 0, 0, 0, 0, 255))  # as of some network filesystems


def node(path: Path) -> CheckedNode:
    return CheckedNode({}, str(path), str(path))


def test_a_full_filesystem_is_a_failure() -> None:
    assert space.judge_filesystem("/tmp", FULL, 1 << 20) == failed("/tmp has only 0 B of free space, less than 1 MiB")
    assert space.judge_filesystem("/tmp", NO_INODES, 0) == failed("/tmp has no free inode")
    assert space.judge_filesystem("/tmp", WITHOUT_INODES, 0).verdict is Verdict.PASSED


def test_memory_that_is_available_counts_not_that_which_is_free() -> None:
    assert space.judge_memory(MEMINFO, 2 << 20).verdict is Verdict.PASSED
    assert space.judge_memory(MEMINFO, 3 << 20) == failed("only 2 MiB of memory are available, less than 3 MiB")
    assert space.judge_memory("MemTotal: 1 kB\n", 1).verdict is Verdict.SKIPPED


def test_this_machine_has_some_of_each_and_less_than_a_petabyte(tmp_path: Path) -> None:
    for check in (space.check_disk, space.check_memory, space.check_shared_memory):
        assert check(node(tmp_path), 0).verdict is Verdict.PASSED
        assert check(node(tmp_path), 1 << 50).verdict is Verdict.FAILED
