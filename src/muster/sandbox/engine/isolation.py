"""The isolation levels, strongest first, and their profiles. A node uses the first profile that can start a worker.

level     profile (jail/confine.py)    needs
full      root                         root with CAP_SYS_ADMIN
full      user                         unprivileged user namespaces
floor     floor                        Landlock (Linux 5.13)
process   process                      nothing; only on request: it does not protect files
gvisor    gvisor                       gVisor (runsc); only on request: a program costs several times as much
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from muster.sandbox.jail import landlock, seccomp

NPROC_BY_NAMESPACE = (5, 14)  # Linux version since which RLIMIT_NPROC counts each user namespace separately


@dataclass(frozen=True)
class Profile:
    """A way to reach an isolation level."""

    level: str
    name: str


ROOT, USER = Profile("full", "root"), Profile("full", "user")
FLOOR, PROCESS = Profile("floor", "floor"), Profile("process", "process")
GVISOR = Profile("gvisor", "gvisor")


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
    levels = {"auto": [*full, FLOOR], "full": full, "floor": [FLOOR], "process": [PROCESS], "gvisor": [GVISOR]}
    return levels[isolation]


def why_impossible(profile: Profile) -> str | None:
    """Return why the profile cannot work here; None if it has to be tried."""
    if not seccomp.is_known_here():
        return f"no seccomp filter is known for this machine ({os.uname().machine})"
    if profile is FLOOR and landlock.abi() == 0:
        return "this kernel has no Landlock (Linux 5.13 or newer, switched on)"
    return None


def counts_processes(profile: Profile, has_own_user: bool) -> bool:
    """Return whether RLIMIT_NPROC limits each worker separately: else it counts all processes of the service's user."""
    return has_own_user or profile is GVISOR or (profile is USER and _kernel() >= NPROC_BY_NAMESPACE)


def mechanisms(
    profile: Profile, *, network: bool, own_user: bool, cgroups: Sequence[str], proc: bool
) -> tuple[str, ...]:
    """Name the mechanisms in use, for people and for /health."""
    found = ["no_new_privs", "seccomp", "rlimits"]
    if profile is GVISOR:
        found.insert(0, "gVisor (systrap)")
    if profile.level == "full":
        kinds = (["user"] if profile is USER else []) + ["mount", "pid", "ipc", "uts"] + ([] if network else ["net"])
        found += [f"{kind} namespace" for kind in kinds]
        if not proc:
            found.append("no /proc")
    if landlock.abi() and profile not in (PROCESS, GVISOR):
        found.append(f"Landlock {landlock.abi()}")
    if own_user:
        found.append("a user for each worker")
    found += [f"cgroup {name}" for name in cgroups]
    return tuple(found)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)
