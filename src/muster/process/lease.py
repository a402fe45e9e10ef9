"""A lease on everything that this process owns: supervisors kill it when the lease has run out, whatever became of us.

A stopped process, or one that hangs in the kernel, cannot end what it started; its supervisors can. The lease is a few
bytes of shared memory, so renewing it costs nothing and asks nobody.
"""

from __future__ import annotations

import mmap

from muster.process.memory_file import memory_file
from muster.process.supervisor import LEASE, lease_clock


class ProcessLease:
    """For ever, until it is renewed for the first time."""

    def __init__(self) -> None:
        self.fd = memory_file("muster-lease", [bytes(LEASE.size)])
        self._memory = mmap.mmap(self.fd, LEASE.size)

    def renew(self, seconds: float) -> None:
        """From now on."""
        LEASE.pack_into(self._memory, 0, lease_clock() + int(seconds * 1e9))

    @property
    def expired(self) -> bool:
        (until,) = LEASE.unpack_from(self._memory)
        return bool(until) and lease_clock() >= until

    def clear(self) -> None:
        """For ever again: there is nobody left who could go on without us."""
        LEASE.pack_into(self._memory, 0, 0)


held: ProcessLease | None = None  # under which this process opens its scopes


def hold() -> ProcessLease:
    """Put every scope that is opened from now on under one lease."""
    global held
    held = ProcessLease()
    return held
