"""The state that a worker compares before each fork: every change is detected."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.sandbox.jail import state
from muster.sandbox.jail.kernel import syscall

IOPRIO_SET = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
CHANGEABLE = [limit for limit in state.LIMITS if resource.getrlimit(limit)[1] not in range(8)]
NO_ACCESS = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", kind, 0, -1) for kind in (1, 4, 32))


def is_noticed(change: Callable[[], object], look: Callable[[], object]) -> bool:
    """In a child, as some changes cannot be undone."""
    before = look()
    assert look() == before
    pid = os.fork()
    if pid == 0:
        try:
            change()
            os._exit(look() != before)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


@pytest.mark.parametrize(
    "change",
    [
        *(lambda limit=limit: resource.setrlimit(limit, (7, resource.getrlimit(limit)[1])) for limit in CHANGEABLE),
        lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
        lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
        lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
        lambda: os.nice(1),
        lambda: syscall(IOPRIO_SET, 1, 0, 3 << 13),
    ],
)
def test_limits_and_scheduling(change: Callable[[], object]) -> None:
    if len(os.sched_getaffinity(0)) == 1 and "setaffinity" in change.__code__.co_names:
        pytest.skip("there is one CPU only")
    assert is_noticed(change, state.attributes)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.chmod(path, 0o500),
        lambda path: os.chmod(path, 0o2700),
        lambda path: os.setxattr(path, "system.posix_acl_default", NO_ACCESS),
        lambda path: os.setxattr(path, "user.left", b"x"),
        lambda path: (os.rename(path, f"{path}-away"), os.mkdir(path, 0o700)),
        lambda path: (os.rename(path, f"{path}-away"), os.symlink(f"{path}-away", path)),
    ],
    ids=["mode", "setgid", "default acl", "extended attribute", "another directory", "a link"],
)
def test_a_directory_of_the_scratch(change: Callable[[str], object], tmp_path: Path) -> None:
    path = str(tmp_path / "scratch")
    os.mkdir(path, 0o700)
    directory = state.ScratchDirectory(path)
    assert is_noticed(lambda: change(path), directory.is_unchanged)
    os.close(directory.fd)
