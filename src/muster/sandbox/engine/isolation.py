"""The isolation levels, strongest first, and their profiles. A node uses the first profile that can start a worker.

level     profile (jail/confine.py)    needs
full      root                         root with CAP_SYS_ADMIN
full      user                         unprivileged user namespaces
floor     floor                        Landlock (Linux 5.13)
process   process                      nothing; only on request: it does not protect files
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from muster.sandbox.jail import landlock, seccomp
from muster.sandbox.settings import MAX_SLOTS

USERS = 2 * MAX_SLOTS  # one for each worker and for each workspace
LEAST_USER = 1000  # lower user ids belong to the system
NPROC_BY_NAMESPACE = (5, 14)  # Linux version since which RLIMIT_NPROC counts each user namespace separately


@dataclass(frozen=True)
class Profile:
    """A way to reach an isolation level."""

    level: str
    name: str


ROOT, USER = Profile("full", "root"), Profile("full", "user")
FLOOR, PROCESS = Profile("floor", "floor"), Profile("process", "process")


@dataclass(frozen=True)
class Level:
    """The profile in use, its mechanisms, and why each stronger profile was rejected."""

    profile: Profile
    mechanisms: tuple[str, ...]
    rejected: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {"level": self.profile.level, "mechanisms": list(self.mechanisms), "why_not_more": list(self.rejected)}


def candidates(isolation: str, is_root: bool) -> list[Profile]:
    """Return the profiles to try, in order. `auto` never goes below the floor: less must be requested explicitly."""
    full = [ROOT, USER] if is_root else [USER]
    return {"auto": [*full, FLOOR], "full": full, "floor": [FLOOR], "process": [PROCESS]}[isolation]


def user_id_ranges() -> list[tuple[int, int]]:
    """Return (first, count) of each range of user ids in our namespace: a container may have few."""
    with open("/proc/self/uid_map") as file:
        return [(int(fields[0]), int(fields[2])) for fields in map(str.split, file)]


def first_user(wanted: int, ranges: Sequence[tuple[int, int]]) -> int | None:
    """Return the first user id for workers and workspaces: `wanted`, else the last that fits; None if too few exist.

    >>> first_user(1_900_000_000, [(0, 4294967295)]), first_user(1_900_000_000, [(0, 300_000)])
    (1900000000, 100000)
    """
    for first, count in ranges:
        if first <= wanted and wanted + USERS <= first + count:
            return wanted
    ends = [first + count - USERS for first, count in ranges if count > USERS + LEAST_USER]
    return max(ends) if ends else None


def why_impossible(profile: Profile) -> str | None:
    """Return why the profile cannot work here; None if it has to be tried."""
    if not seccomp.is_known_here():
        return f"no seccomp filter is known for this machine ({os.uname().machine})"
    if profile is FLOOR and landlock.abi() == 0:
        return "this kernel has no Landlock (Linux 5.13 or newer, switched on)"
    return None


def counts_processes(profile: Profile, has_own_user: bool) -> bool:
    """Return whether RLIMIT_NPROC limits each worker separately: else it counts all processes of the service's user."""
    return has_own_user or (profile is USER and _kernel() >= NPROC_BY_NAMESPACE)


def mechanisms(
    profile: Profile, *, network: bool, own_user: bool, cgroups: Sequence[str], proc: bool
) -> tuple[str, ...]:
    """Name the mechanisms in use, for people and for /health."""
    found = ["no_new_privs", "seccomp", "rlimits"]
    if profile.level == "full":
        kinds = (["user"] if profile is USER else []) + ["mount", "pid", "ipc", "uts"] + ([] if network else ["net"])
        found += [f"{kind} namespace" for kind in kinds]
        if not proc:
            found.append("no /proc")
    if landlock.abi() and profile is not PROCESS:
        found.append(f"Landlock {landlock.abi()}")
    if own_user:
        found.append("a user for each worker")
    found += [f"cgroup {name}" for name in cgroups]
    return tuple(found)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)
