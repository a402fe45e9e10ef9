"""The walls of a worker, in the order in which they can be built; afterwards it is no more than what it will fork.

recipe   who                                what
root     root, in the first user namespace  mount, pid, net, ipc, uts namespaces; then another user
user     anybody, where the site allows it  the same in a user namespace, in which we are one plain user
floor    anybody                            Landlock on files instead of namespaces; as root another user
process  anybody, only when asked for       neither: seccomp and limits alone
"""

from __future__ import annotations

import os
import resource
import socket
from dataclasses import dataclass, field
from typing import Any

from muster.sandbox.jail import kernel, landlock, rootfs, seccomp

INNER_USER = 1000  # who we are in a user namespace


@dataclass
class ConfinementPlan:
    """Everything that a worker's walls depend on: decided by the server, the same for all but the last four."""

    recipe: str
    read_only: list[str]
    memory_mb: int
    processes: int
    open_files: int
    file_mb: int
    scratch_mb: int
    network: bool
    counts_processes: bool  # whether RLIMIT_NPROC counts this worker's processes alone
    place: str = ""  # a directory of this worker's own, on the host
    user: int | None = None
    workspace: str | None = None
    cgroups: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ConfinementPlan:
        return cls(**values)

    @property
    def has_namespaces(self) -> bool:
        return self.recipe in ("root", "user")

    @property
    def home(self) -> str:
        return rootfs.HOME if self.has_namespaces else (self.workspace or self.place) + "/home"

    @property
    def temporary(self) -> str:
        return rootfs.TEMPORARY if self.has_namespaces else (self.workspace or self.place) + "/tmp"

    @property
    def is_on_disk(self) -> bool:
        """Whether what is written has no limit but our own look at it."""
        return not self.has_namespaces or self.workspace is not None

    @property
    def owns_processes(self) -> bool:
        """Whether programs can reach no process but this worker and what it forked.

        The workers of a workspace are one user, as are all where there is no user for each.
        """
        return self.has_namespaces or (self.user is not None and self.workspace is None)

    @property
    def scratch(self) -> dict[str, list[str]]:
        """The directories that are emptied between two programs, and the names in each that stay."""
        private = [] if self.workspace else [self.home, self.temporary]
        if self.has_namespaces:
            return {place: rootfs.shown_in(place, self.read_only) for place in (*private, rootfs.SHARED_MEMORY)}
        emptied: dict[str, list[str]] = {place: [] for place in private}
        if self.recipe == "process" and self.user is None:  # a program can write beside them
            emptied[self.place] = [os.path.basename(self.home), os.path.basename(self.temporary)]
        return emptied

    @property
    def written(self) -> dict[str, list[str]]:
        """The directories whose size is limited by looking at it, and the names in each that do not count."""
        places = (self.home, self.temporary)
        return {place: rootfs.shown_in(place, self.read_only) if self.has_namespaces else [] for place in places}


@dataclass
class Walls:
    """What an execution still adds for itself, and what is worth telling."""

    execution_rules: landlock.Ruleset
    proc: bool


def enter_namespaces(plan: ConfinementPlan) -> None:
    """The caller's next child is the first process of the new pid namespace."""
    for directory in plan.cgroups:
        # Version 1 lets a single thread in by itself; whole processes wait for the kernel's RCU, 10 ms and more.
        tasks = directory + "/tasks"
        with open(tasks if os.path.exists(tasks) else directory + "/cgroup.procs", "w") as file:
            file.write("0")
    if not plan.has_namespaces:
        return
    user, group = os.getuid(), os.getgid()
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    flags |= 0 if plan.network else kernel.CLONE_NEWNET
    kernel.unshare(flags | (kernel.CLONE_NEWUSER if plan.recipe == "user" else 0))
    if plan.recipe == "user":
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{INNER_USER} {user} 1"),
            ("gid_map", f"{INNER_USER} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    socket.sethostname("sandbox")


def confine(plan: ConfinementPlan) -> Walls:
    """Everything else. From its return on nothing can be undone."""
    proc = False
    if plan.has_namespaces:
        owner = (INNER_USER, INNER_USER) if plan.recipe == "user" else (plan.user or 0, plan.user or 0)
        proc = rootfs.build(
            rootfs.Root(plan.place, plan.read_only, plan.scratch_mb, plan.workspace, plan.network, owner)
        )
    _limit(plan)
    kernel.forbid_capabilities()
    if plan.user is not None:
        os.setgroups([])
        os.setresgid(plan.user, plan.user, plan.user)
        os.setresuid(plan.user, plan.user, plan.user)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # of the same user, and still closed to what we fork
    rules = _file_rules(plan)
    families = None if plan.network else [seccomp.AF_UNIX] if plan.has_namespaces else []
    # A program may change itself, with 0 as its number; and what it started, where that can be told from others.
    others = [os.getpid()] if plan.owns_processes else None
    seccomp.install(seccomp.filter_for(kernel.MACHINE, families, bool(plan.cgroups), others))
    os.chdir(plan.home)
    return Walls(rules, proc)


def _limit(plan: ConfinementPlan) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: plan.memory_mb << 20,
        resource.RLIMIT_FSIZE: plan.file_mb << 20,
        resource.RLIMIT_NOFILE: plan.open_files,
    }
    if plan.counts_processes:
        limits[resource.RLIMIT_NPROC] = plan.processes + 1  # ourselves
    for what, value in limits.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def _file_rules(plan: ConfinementPlan) -> landlock.Ruleset:
    """Enforce the worker's own rules on files, if they are its wall; returns those of its executions."""
    by_landlock = plan.recipe == "floor"
    execution = landlock.Ruleset(files=by_landlock, tcp=not plan.network, scopes=plan.recipe != "process")
    if by_landlock:
        worker = landlock.Ruleset(files=True, tcp=not plan.network, scopes=True)
        readable = [*rootfs.SYSTEM, *(f"/etc/{name}" for name in rootfs.ETC), *plan.read_only]
        readable += [f"/etc/{name}" for name in (*rootfs.ETC_OF_NETWORK, "passwd", "group")]
        for rules in (worker, execution):
            rules.allow(readable, landlock.READ)
            rules.allow([f"/dev/{name}" for name in rootfs.DEVICES], landlock.DEVICE)
            rules.allow([plan.home, plan.temporary], rules.handled)  # not beside them: that is not cleaned
        worker.allow(["/proc"], landlock.READ | landlock.WRITE_FILE)  # to find, and rate, what it forked
        worker.enforce()
        os.close(worker.fd)
    return execution
