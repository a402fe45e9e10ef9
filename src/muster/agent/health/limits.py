"""Limits of the operating system that Ray exceeds on busy nodes: open files, and processes with their threads."""

from __future__ import annotations

import os
import resource

WANTED_OPEN_FILES = 65536
MIN_OPEN_FILES = 8192  # below this Ray may fail, so there is a warning
THREADS_BASE, THREADS_PER_CPU = 300, 40  # used by Ray's daemons, and by each CPU's worker process


def raise_limits() -> None:
    """Raise the soft limits of open files and processes up to the hard limits; child processes inherit them."""
    for which, wanted in ((resource.RLIMIT_NOFILE, WANTED_OPEN_FILES), (resource.RLIMIT_NPROC, resource.RLIM_INFINITY)):
        soft, hard = resource.getrlimit(which)
        target = hard if wanted == resource.RLIM_INFINITY else _least(wanted, hard)
        if soft != resource.RLIM_INFINITY and (target == resource.RLIM_INFINITY or soft < target):
            resource.setrlimit(which, (target, hard))


def warnings(cpus: int) -> list[str]:
    """Return a warning for each limit that is too low for Ray on this many CPUs."""
    found = []
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < MIN_OPEN_FILES:
        found.append(f"only {files} open files are allowed (ulimit -n): Ray may fail with 'Too many open files'")
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    needed = THREADS_BASE + THREADS_PER_CPU * cpus
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY and most - own_threads() < needed:
        found.append(
            f"only {most} processes and threads are allowed (ulimit -u), about {needed} more are needed: "
            "Ray may fail with 'pthread_create failed' or 'Resource temporarily unavailable'"
        )
    return found


def own_threads() -> int:
    """Count the threads of this user on this host, as RLIMIT_NPROC does."""
    count, uid = 0, os.geteuid()
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count


def _least(wanted: int, hard: int) -> int:
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
