"""Landlock: restrict what a process may reach, without any privilege; older kernels support less of it.

abi   since   adds
1     5.13    files            2  5.19  rename and link between directories      3  6.2  truncate
4     6.7     TCP              5  6.10  ioctl on devices                         6  6.12 signals, abstract sockets
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from muster.sandbox.jail.kernel import checked, syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FIRST_FILE_BITS = (1 << 13) - 1
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # the others apply to directories
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
TCP = 3  # bind and connect
SCOPES = 3  # abstract sockets and signals
O_PATH = 0o10000000


def abi() -> int:
    """Return the newest version that this kernel supports; 0 without Landlock."""
    return max(0, syscall(CREATE_RULESET, None, 0, 1))


def file_bits(version: int) -> int:
    """Return every file right that this version can restrict."""
    later = ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
    return FIRST_FILE_BITS | sum(bit for since, bit in later if version >= since)


class Ruleset:
    """A set of rules; any number of forks may enforce it."""

    def __init__(self, *, files: bool, tcp: bool, scopes: bool) -> None:
        """Restrict these kinds, as far as this kernel can; `allow` grants file rights again."""
        self.version = abi()
        self.handled = file_bits(self.version) if files else 0
        scoped = SCOPES if scopes and self.version >= 6 else 0
        ports = TCP if tcp and self.version >= 4 else 0
        self.fd = -1
        if self.handled or ports or scoped:
            attributes = struct.pack("=QQQ", self.handled, ports, scoped)
            size = 24 if self.version >= 6 else 16 if self.version >= 4 else 8
            self.fd = checked(syscall(CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")

    def allow(self, paths: Iterable[str], rights: int) -> None:
        """Grant the rights on the paths and everything below; paths that cannot be opened are skipped."""
        for path in paths:
            try:
                fd = os.open(path, O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            kinds = rights if os.path.isdir(path) else rights & FILE_RIGHTS
            rule = struct.pack("=Qi", kinds & self.handled, fd)
            try:
                checked(syscall(ADD_RULE, self.fd, 1, rule, 0), f"landlock rule for {path}")
            finally:
                os.close(fd)

    def enforce(self) -> None:
        """Restrict this process and its future children. Needs no_new_privs."""
        if self.fd != -1:
            checked(syscall(RESTRICT_SELF, self.fd, 0), "landlock_restrict_self")
