"""Detect changes that a program made to its worker or to the directories of the next program.

A program is forked by its worker and has the same user. The seccomp filter keeps it from changing limits and scheduling
of the worker, but it may change modes and attributes of its scratch. Both are compared at every fork with their values
before the first program: a few system calls, some tens of microseconds.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import resource

from muster.process.file_trees import OPEN_DIRECTORY
from muster.sandbox.jail.kernel import MACHINE, libc

LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
IOPRIO_WHO_PROCESS = 1
SCHED_ATTR_BYTES = 56  # struct sched_attr with utilization clamps (Linux 5.3)
POLICY_TO_PRIORITY, CLAMPS = slice(4, 24), slice(48, 56)  # between them is the time slice, which the kernel changes
FS_IOC_GETFLAGS = 0x80086601
FILESYSTEM_FLAGS = 0x100C1100  # set by the filesystem itself, such as EXT4_INDEX_FL on a large directory

_attr = ctypes.create_string_buffer(SCHED_ATTR_BYTES)
_get_scheduling = (
    ctypes.c_long(SCHED_GETATTR.get(MACHINE, -1)),
    ctypes.c_long(0),
    _attr,
    ctypes.c_long(SCHED_ATTR_BYTES),
    ctypes.c_long(0),
)
_get_io_priority = (ctypes.c_long(IOPRIO_GET.get(MACHINE, -1)), ctypes.c_long(IOPRIO_WHO_PROCESS), ctypes.c_long(0))


def attributes() -> tuple[object, ...]:
    """Return what forks inherit from this process: limits, CPUs, scheduling policy, nice value, I/O priority."""
    libc.syscall(*_get_scheduling)
    return (
        [resource.getrlimit(limit) for limit in LIMITS],
        os.sched_getaffinity(0),
        _attr.raw[POLICY_TO_PRIORITY],
        _attr.raw[CLAMPS],
        libc.syscall(*_get_io_priority),
    )


class ScratchDirectory:
    """A directory of the scratch, with its state before the first program."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, OPEN_DIRECTORY)
        self._initial = self._state()

    def is_unchanged(self) -> bool:
        """Return whether it is the same directory, with the same owner, mode, ACL, extended attributes and flags."""
        return self._state() == self._initial

    def _state(self) -> tuple[object, ...]:
        status = os.lstat(self.path)
        identity = status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid
        return (*identity, self._extended_attributes(), self._flags())

    def _extended_attributes(self) -> list[str]:
        """Return their names, including those of ACLs."""
        try:
            return os.listxattr(self.fd)
        except OSError:
            return []  # the filesystem has none

    def _flags(self) -> int:
        """Return the flags of chattr: some change how files are named, encrypted or written."""
        flags = array.array("l", [0])
        try:
            fcntl.ioctl(self.fd, FS_IOC_GETFLAGS, flags)
        except OSError:
            return 0  # the filesystem has none
        return flags[0] & ~FILESYSTEM_FLAGS
