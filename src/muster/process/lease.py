"""A lease on all processes that this process owns: when it expires, the supervisors kill them.

A process that is stopped or hangs in the kernel cannot end its children; its supervisors can. The lease is a few bytes
of shared memory, so renewing it is cheap and cannot block.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref

from muster.process.memory_file import memory_file
from muster.process.supervisor import LEASE, LEASE_FENCED, lease_clock

_EXPIRY = struct.Struct("=Q")  # the first field of LEASE: supervisors write the other one


class ProcessLease:
    """A lease in shared memory. It does not expire before it is renewed for the first time."""

    def __init__(self) -> None:
        self.fd = memory_file("muster-lease", [bytes(LEASE.size)])
        self._memory = mmap.mmap(self.fd, LEASE.size)
        weakref.finalize(self, os.close, self.fd).atexit = False  # a process may create several, one after the other

    def renew(self, seconds: float) -> None:
        """Let the lease expire `seconds` from now."""
        _EXPIRY.pack_into(self._memory, 0, lease_clock() + int(seconds * 1e9))

    @property
    def expired(self) -> bool:
        until, _ = LEASE.unpack_from(self._memory)
        return bool(until) and lease_clock() >= until

    @property
    def fenced(self) -> bool:
        """Whether a supervisor has killed processes since the lease was last cleared, because it had expired."""
        return bool(self._memory[LEASE_FENCED])

    def clear(self) -> None:
        """Remove the expiry: nothing runs, or no other node is left that could take over."""
        LEASE.pack_into(self._memory, 0, 0, 0)


held: ProcessLease | None = None  # passed to the supervisors of all scopes of this process


def hold() -> ProcessLease:
    """Put every scope that is opened from now on under one lease."""
    global held
    held = ProcessLease()
    return held
