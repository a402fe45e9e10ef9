"""The confinement of a worker, in the order in which it must be applied. Executions inherit it.

profile  available to                         mechanisms
root     root, in the initial user namespace  mount, pid, net, ipc, uts namespaces; then another user
user     all users, where the site allows it  the same in a user namespace, with one unprivileged user
floor    all users                            Landlock on files instead of namespaces; as root another user
process  all users, only on request           neither: only seccomp and limits
gvisor   all users, only on request           the sandbox of gVisor in which it runs; programs have another user there
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from muster.sandbox.jail import gvisor, kernel, landlock, rootfs, seccomp

INOTIFY_INSTANCES = 16  # of a worker: a user has 128, also for programs outside the sandbox
INNER_USER = 1000  # our user and group id in a user namespace


@dataclass
class ConfinementPlan:
    """The parameters of a worker's confinement, chosen by the engine; only the last six differ between workers."""

    profile: str
    read_only: list[str]
    memory_mb: int
    processes: int
    open_files: int
    file_mb: int
    scratch_mb: int
    network: bool
    counts_processes: bool  # whether RLIMIT_NPROC counts only this worker's processes
    directory: str = ""  # of this worker, on the host
    user: int | None = None
    workspace: str | None = None
    cgroups: list[str] = field(default_factory=list)
    clock_difference: float = 0.0  # of the engine, for a worker that has another clock
    has_loopback: bool = False  # set by the worker itself

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ConfinementPlan:
        return cls(**values)

    @property
    def has_namespaces(self) -> bool:
        return self.profile in ("root", "user")

    @property
    def is_in_gvisor(self) -> bool:
        return self.profile == "gvisor"

    @property
    def has_private_system(self) -> bool:
        """Whether processes, files and network of programs are apart from those of the host."""
        return self.has_namespaces or self.is_in_gvisor

    @property
    def forbids_tcp(self) -> bool:
        """Whether programs share the host's network, which they may not use; a private one has only a loopback."""
        return not self.network and not self.has_private_system

    @property
    def home(self) -> str:
        return rootfs.HOME if self.has_private_system else (self.workspace or self.directory) + "/home"

    @property
    def temporary(self) -> str:
        return rootfs.TEMPORARY if self.has_private_system else (self.workspace or self.directory) + "/tmp"

    @property
    def is_on_disk(self) -> bool:
        """Whether only our usage checks limit the size of the scratch."""
        return not self.has_namespaces or self.workspace is not None

    @property
    def owns_processes(self) -> bool:
        """Whether programs can signal no process but this worker and its descendants.

        Workers of the same workspace share a user; so do all workers that have no separate user.
        """
        return self.has_private_system or (self.user is not None and self.workspace is None)

    @property
    def scratch(self) -> dict[str, list[str]]:
        """The directories that are emptied between two programs, and the names in each that are kept."""
        private = [] if self.workspace else [self.home, self.temporary]
        if self.has_private_system:
            private += rootfs.private_scratch(self.read_only)
            return {path: rootfs.shown_in(path, self.read_only) for path in private}
        emptied: dict[str, list[str]] = {path: [] for path in private}
        if self.profile == "process" and self.user is None:  # programs can write beside them
            emptied[self.directory] = [os.path.basename(self.home), os.path.basename(self.temporary)]
        return emptied

    @property
    def written(self) -> dict[str, list[str]]:
        """The directories whose size usage checks limit, and the names in each that do not count."""
        paths = [self.home, self.temporary]
        if self.is_in_gvisor:  # each is a filesystem of the whole size, without a limit on the number of files
            paths += rootfs.private_scratch(self.read_only)
        return {path: rootfs.shown_in(path, self.read_only) if self.has_private_system else [] for path in paths}


@dataclass
class Confinement:
    """The rules that each execution adds for itself, and whether there is a /proc."""

    execution_rules: landlock.Ruleset | gvisor.ProgramUser
    proc: bool


def enter_namespaces(plan: ConfinementPlan) -> None:
    """Enter cgroups and namespaces. The caller's next child is the first process of the new pid namespace."""
    if plan.is_in_gvisor:  # the engine has put the whole sandbox into its cgroups
        gvisor.set_clock(plan.clock_difference)
        plan.has_loopback = True
        return
    for directory in plan.cgroups:
        # Version 1 can move a single thread; moving a process waits for the kernel's RCU, 10 ms and more.
        tasks = directory + "/tasks"
        with open(tasks if os.path.exists(tasks) else directory + "/cgroup.procs", "w") as file:
            file.write("0")
    if not plan.has_namespaces:
        return
    user, group = os.getuid(), os.getgid()
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    flags |= 0 if plan.network else kernel.CLONE_NEWNET
    kernel.unshare(flags | (kernel.CLONE_NEWUSER if plan.profile == "user" else 0))
    if plan.profile == "user":
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{INNER_USER} {user} 1"),
            ("gid_map", f"{INNER_USER} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        with suppress(OSError), open("/proc/sys/user/max_inotify_instances", "w") as file:
            file.write(str(INOTIFY_INSTANCES))  # of this namespace; they count for our user outside too
    socket.sethostname("sandbox")
    if not plan.network:
        kernel.bring_up_loopback()
        plan.has_loopback = kernel.limit_tcp_buffers()


def confine(plan: ConfinementPlan) -> Confinement:
    """Apply everything but the namespaces; nothing of it can be undone."""
    proc = False
    if plan.has_namespaces:
        owner = (INNER_USER, INNER_USER) if plan.profile == "user" else (plan.user or 0, plan.user or 0)
        proc = rootfs.build(
            rootfs.RootSpec(plan.directory, plan.read_only, plan.scratch_mb, plan.workspace, plan.network, owner)
        )
    _limit(plan)
    if not plan.is_in_gvisor:  # there executions do so
        kernel.forbid_capabilities()
        if plan.user is not None:
            os.setgroups([])
            os.setresgid(plan.user, plan.user, plan.user)
            os.setresuid(plan.user, plan.user, plan.user)
        kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # closed to our executions, although they have the same user
    rules = (
        gvisor.ProgramUser(INNER_USER if plan.user is None else plan.user) if plan.is_in_gvisor else _file_rules(plan)
    )
    families: Sequence[int] | None = None
    if not plan.network:
        families = seccomp.LOCAL_FAMILIES if plan.has_loopback else [seccomp.AF_UNIX] if plan.has_private_system else ()
    # A program may change itself (pid 0), and its children where they can be distinguished from other processes.
    others = [os.getpid()] if plan.owns_processes else None
    seccomp.install(seccomp.filter_for(kernel.MACHINE, families, bool(plan.cgroups), others))
    os.chdir(plan.home)
    return Confinement(rules, proc or plan.is_in_gvisor)


def _limit(plan: ConfinementPlan) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: plan.file_mb << 20,
        resource.RLIMIT_NOFILE: plan.open_files,
    }
    if plan.counts_processes:
        limits[resource.RLIMIT_NPROC] = plan.processes + 1  # the worker itself
    for what, value in limits.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
    # Each execution makes one of the two final (`execution.limit_data`).
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    memory = plan.memory_mb << 20
    resource.setrlimit(resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))


def _file_rules(plan: ConfinementPlan) -> landlock.Ruleset:
    """Enforce the worker's file rules, if Landlock protects files here; return the rules of its executions."""
    by_landlock = plan.profile == "floor"
    execution = landlock.Ruleset(files=by_landlock, tcp=plan.forbids_tcp, scopes=plan.profile != "process")
    if by_landlock:
        worker = landlock.Ruleset(files=True, tcp=not plan.network, scopes=True)
        readable = [*rootfs.SYSTEM, *(f"/etc/{name}" for name in rootfs.ETC), *plan.read_only]
        readable += [f"/etc/{name}" for name in (*rootfs.NETWORK_ETC, "passwd", "group")]
        for rules in (worker, execution):
            rules.allow(readable, landlock.READ)
            rules.allow([f"/dev/{name}" for name in rootfs.DEVICES], landlock.DEVICE)
            rules.allow([plan.home, plan.temporary], rules.handled)  # not their parent, which is not emptied
        worker.allow(["/proc"], landlock.READ | landlock.WRITE_FILE)  # to find its descendants and set their OOM score
        worker.enforce()
        os.close(worker.fd)
    return execution
