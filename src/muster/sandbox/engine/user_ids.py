"""The user ids of a service that runs as root: a range that no other service on this host uses.

Two services with the same ids could signal each other's programs at level floor, and their programs would count against
each other's process limits. A service leases its range with the name of an abstract socket, which the kernel releases
when the service and all of its workers have ended.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

from muster.sandbox.settings import MAX_SLOTS

USERS = 2 * MAX_SLOTS  # one for each worker and for each workspace
LEAST_USER = 1000  # lower user ids belong to the system
LAST_USER = 2**31  # programs that store user ids as signed numbers exist


class NoUserIds(Exception):
    """Every range of user ids is leased by another service."""


class UserIds:
    """A leased range of user ids. `first` is None where none can be had: not root, or too few ids in a container."""

    def __init__(self, wanted: int) -> None:
        """Lease the first free range from `wanted` on; raise NoUserIds if all are leased."""
        self._lease: socket.socket | None = None
        self.first: int | None = None
        ranges = first_ids(wanted, _ids_of_namespace()) if os.getuid() == 0 else []
        if not ranges:
            return
        # Abstract names belong to a network namespace: services in different ones begin at different ranges.
        start = os.stat("/proc/self/ns/net").st_ino % len(ranges)
        for first in (*ranges[start:], *ranges[:start]):
            lease = _lease(first)
            if lease is not None:
                self._lease, self.first = lease, first
                return
        raise NoUserIds(
            f"all {len(ranges)} ranges of {USERS} user ids from {wanted} on are in use by other sandboxes of this host"
        )

    def close(self) -> None:
        """Release the range. Processes that still have the lease's descriptor keep it until they end."""
        if self._lease is not None:
            self._lease.close()


def first_ids(wanted: int, available: Sequence[tuple[int, int]]) -> list[int]:
    """Return the first id of each range for a service, given (first, count) of the ids that this namespace has.

    Ranges begin at `wanted`, or end with the last id that is available if `wanted` is not.

    >>> first_ids(1_900_000_000, [(0, 4294967295)])[:2], first_ids(1_900_000_000, [(0, 300_000)])
    ([1900000000, 1900200000], [100000])
    """
    for first, count in available:
        if first <= wanted and wanted + USERS <= first + count:
            end = first + count if wanted + USERS > LAST_USER else min(first + count, LAST_USER)
            return list(range(wanted, end - USERS + 1, USERS))
    ends = [(first + count - USERS, first + LEAST_USER) for first, count in available if count > USERS + LEAST_USER]
    return list(range(*max(ends), -USERS)) if ends else []


def has_users() -> bool:
    """Return whether this user namespace has enough user ids for a service."""
    return bool(first_ids(LEAST_USER, _ids_of_namespace()))


def _ids_of_namespace() -> list[tuple[int, int]]:
    with open("/proc/self/uid_map") as file:
        return [(int(fields[0]), int(fields[2])) for fields in map(str.split, file)]


def _lease(first: int) -> socket.socket | None:
    """Return a socket that holds the name of the range, or None if another process holds it."""
    lease = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lease.bind(f"\0muster-sandbox-users-{first}")
    except OSError as error:
        lease.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return lease
