"""The levels of isolation, strongest first, and how each is built here. The first whose worker stands is the node's.

level     recipe (inside/confine.py)   needs
full      root                         root with CAP_SYS_ADMIN
full      user                         unprivileged user namespaces
floor     floor                        Landlock (Linux 5.13)
process   process                      nothing; only when asked for: it does not protect files
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from muster.sandbox.jail import landlock, seccomp
from muster.sandbox.settings import MAX_SLOTS

USERS, LEAST_USER = 2 * MAX_SLOTS, 1000
COUNTS_BY_NAMESPACE = (5, 14)  # since then RLIMIT_NPROC counts a user namespace's processes apart


@dataclass(frozen=True)
class Profile:
    """A way to build a level."""

    level: str
    name: str


ROOT, USER = Profile("full", "root"), Profile("full", "user")
FLOOR, PROCESS = Profile("floor", "floor"), Profile("process", "process")


@dataclass(frozen=True)
class Level:
    """What is in force, and why not more."""

    recipe: Profile
    mechanisms: tuple[str, ...]
    instead_of: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {"level": self.recipe.level, "mechanisms": list(self.mechanisms), "why_not_more": list(self.instead_of)}


def candidates(isolation: str, is_root: bool) -> list[Profile]:
    """What to try, in this order. `auto` never goes below the floor: who wants less must say so."""
    full = [ROOT, USER] if is_root else [USER]
    return {"auto": [*full, FLOOR], "full": full, "floor": [FLOOR], "process": [PROCESS]}[isolation]


def users_that_exist() -> list[tuple[int, int]]:
    """The first and the number of each range of users in our namespace: a container may have few."""
    with open("/proc/self/uid_map") as file:
        return [(int(words[0]), int(words[2])) for words in map(str.split, file)]


def first_user(wanted: int, ranges: Sequence[tuple[int, int]]) -> int | None:
    """The first of the users for workers and workspaces: as wanted, else the last that there are; None: too few are.

    >>> first_user(1_900_000_000, [(0, 4294967295)]), first_user(1_900_000_000, [(0, 300_000)])
    (1900000000, 100000)
    """
    for first, count in ranges:
        if first <= wanted and wanted + USERS <= first + count:
            return wanted
    ends = [first + count - USERS for first, count in ranges if count > USERS + LEAST_USER]
    return max(ends) if ends else None


def impossible(recipe: Profile) -> str | None:
    """Why it need not be tried."""
    if not seccomp.is_known_here():
        return f"no seccomp filter is known for this machine ({os.uname().machine})"
    if recipe is FLOOR and landlock.abi() == 0:
        return "this kernel has no Landlock (Linux 5.13 or newer, switched on)"
    return None


def counts_processes(recipe: Profile, has_own_user: bool) -> bool:
    """Whether RLIMIT_NPROC can be a worker's own limit: else it would count all that the service's user runs."""
    return has_own_user or (recipe is USER and _kernel() >= COUNTS_BY_NAMESPACE)


def mechanisms(
    recipe: Profile, *, network: bool, own_user: bool, cgroups: Sequence[str], proc: bool
) -> tuple[str, ...]:
    """For people and for /health."""
    found = ["no_new_privs", "seccomp", "rlimits"]
    if recipe.level == "full":
        kinds = (["user"] if recipe is USER else []) + ["mount", "pid", "ipc", "uts"] + ([] if network else ["net"])
        found += [f"{kind} namespace" for kind in kinds]
        if not proc:
            found.append("no /proc")
    if landlock.abi() and recipe is not PROCESS:
        found.append(f"Landlock {landlock.abi()}")
    if own_user:
        found.append("a user for each worker")
    found += [f"cgroup {name}" for name in cgroups]
    return tuple(found)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)
