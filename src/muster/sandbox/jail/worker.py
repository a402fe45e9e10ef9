"""A worker: it confines itself, then forks one execution after the other, and kills everything each leaves behind.

It gets commands from the engine over a packet socket, and reports there:

    from the engine                                           to the engine
    spawn, again  + job socket, stdout, stderr: fork the next born + pidfd   first, by the process that forked it
                  execution; `again`: keep the scratch        ready          it is confined; or: failed, why
    usage         check the tree's usage against its limits   ended          status, usage, reason, is all clean?
    interrupt     SIGINT to the execution                     usage          memory and CPU time of the tree, if changed
    kill REASON   kill the tree

It reads no code, no input and no output. It exits when the socket is closed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket

from muster.process.file_trees import OPEN_DIRECTORY, empty_directory, used_bytes
from muster.sandbox.jail import confine, execution, gvisor, kernel, state, tree, usage, wire
from muster.sandbox.jail.confine import Confinement, ConfinementPlan
from muster.sandbox.jail.rootfs import inodes_of

MEMORY_REPORT_BYTES = 8 << 20  # smaller changes are not reported
CPU_REPORT_S = 0.2  # CPU time since the last report; less is not reported
SPAWN, SPAWN_AGAIN, CHECK_USAGE, INTERRUPT, KILL = b"spawn", b"again", b"usage", b"interrupt", b"kill "
MAX_COMMAND_BYTES = 100
# Status, CPU seconds, max RSS in KB, others killed, clean, the time of the end by the clock of the engine, reason or -
REPORT = "ended %d %.4f %d %d %d %.6f %s"
MAX_COUNTED_FILES = 20000  # in the scratch; fewer if it is small, as on the filesystem of the level full
MAX_TCP_SOCKETS = 1000  # of a program, where no cgroup counts the memory of their buffers
# Limits of emptying the scratch, for which the next program may be waiting: a worker with more is replaced, which takes
# a few milliseconds. Under Landlock every step in a tree costs time in proportion to its depth.
MAX_REMOVED_FILES, MAX_REMOVED_LEVELS = 1000, 50


def main(control: socket.socket, plan: ConfinementPlan) -> None:
    """Run a worker in a fork of the zygote. Never returns."""
    try:
        _restore_signals()
        confine.enter_namespaces(plan)
        pid = os.fork() if plan.has_namespaces else 0
        if (pid or not plan.has_namespaces) and not plan.is_in_gvisor:  # whose process is that of runsc
            _send_birth(control, pid or os.getpid())
        if pid:
            os._exit(0)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        _protect_from_oom_killer()
        confinement = confine.confine(plan)
        os.environ.update(HOME=plan.home, TMPDIR=plan.temporary)
        worker = JailWorker(control, plan, confinement)
        wire.send(control, {"event": "ready", "proc": confinement.proc})
    except BaseException as error:
        with contextlib.suppress(OSError):
            wire.send(control, {"event": "failed", "why": str(error) or type(error).__name__})
        os._exit(1)
    try:
        worker.serve()
    finally:
        os._exit(0)


def _send_birth(control: socket.socket, pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError):  # before Linux 5.3, or Python was built there
        wire.send(control, {"event": "born", "pid": pid})
        return
    wire.send(control, {"event": "born", "pid": pid}, (pidfd,))
    os.close(pidfd)


def _restore_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def _protect_from_oom_killer() -> None:
    """Lower our OOM score where we may: executions are to be killed. They raise their own score in any case."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")


class JailWorker:
    """Handles the engine's commands. Between two forks it does as little as it can: see wire.py."""

    def __init__(self, control: socket.socket, plan: ConfinementPlan, confinement: Confinement) -> None:
        self.control, self.plan, self.confinement = control, plan, confinement
        self.reaper: tree.TreeReaper | None = None
        self.reason: str | None = None
        self.is_clean = True
        self.own_sandbox_memory = gvisor.used_memory() if plan.is_in_gvisor else 0
        self.own_memory, self.own_pages = usage.resident(os.getpid())[0], usage.pages_of(os.getpid())
        self.reported_memory, self.reported_cpu_s = 0, 0.0
        self.scratch = [(state.ScratchDirectory(path), keep) for path, keep in plan.scratch.items()]
        self.attributes = state.attributes()
        # In a sandbox of gVisor the cgroups count its kernel, too, and would end it as a whole.
        self.checks_usage = (
            not plan.cgroups or plan.is_in_gvisor
        )  # of memory and processes, which cgroups limit by themselves
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.exit_watch = tree.ExitWatch(self.poll)

    def serve(self) -> None:
        control = self.control.fileno()
        gc.disable()
        while True:
            for fd, _ in self.poll.poll():
                if fd == control and not self.handle_command():
                    self.finish()
                    return
            reaper = self.reaper
            if reaper is None:
                continue
            self.exit_watch.clear()
            reaper.collect()
            if reaper.first_has_ended:
                self.finish()

    def handle_command(self) -> bool:
        """Handle one command; return False if the engine is gone."""
        command, fds = wire.receive_bytes(self.control, MAX_COMMAND_BYTES)
        if not command:
            return False
        if command in (SPAWN, SPAWN_AGAIN):
            self.spawn(command == SPAWN, fds)
        elif self.reaper is not None and not self.reaper.first_has_ended:
            if command == CHECK_USAGE:
                self.check_usage()
            elif command == INTERRUPT:
                os.kill(self.reaper.first, signal.SIGINT)
            elif command.startswith(KILL):
                self.reason = command[len(KILL) :].decode()
                self.finish()
        return True

    def spawn(self, fresh: bool, fds: list[int]) -> None:
        """Fork the next execution, which waits for its job.

        A failure before the fork is reported to the engine: the job, if it was sent already, was not started. A failure
        after it ends this worker: the engine then reports the program as lost, since it may have started.
        """
        self.reason, self.reported_memory, self.reported_cpu_s = None, 0, 0.0
        pid = -1
        try:
            why = self.why_unfit(fresh, fds)
            if why is None:
                pid = os.fork()
        except BaseException as error:
            why = str(error) or type(error).__name__
        if why is not None:
            wire.send(self.control, {"event": "failed", "why": why})
            os._exit(1)
        if pid == 0:
            execution.main(fds, self.confinement.execution_rules)
        for fd in fds:
            os.close(fd)
        self.reaper = tree.TreeReaper(pid, self.plan.owns_processes)
        self.exit_watch.watch(pid)

    def why_unfit(self, fresh: bool, fds: list[int]) -> str | None:
        """Return why this worker cannot run another program like its first; None if it can."""
        if len(fds) != execution.DESCRIPTORS:
            return "it did not receive the execution's descriptors"
        if state.attributes() != self.attributes:
            return "a program changed its limits or its scheduling"
        if fresh:
            for directory, keep in self.scratch:
                if not directory.is_unchanged():
                    return f"a program changed {directory.path}"
                if not empty_directory(directory.fd, keep, MAX_REMOVED_FILES, MAX_REMOVED_LEVELS):
                    return f"{directory.path} could not be emptied"
        return None

    def finish(self) -> None:
        """Kill what is left of the tree and report its end."""
        if self.reaper is None:
            return
        self.exit_watch.unwatch()
        ended = gvisor.engine_time()
        reaped = self.reaper.finish()
        self.reaper = None
        self.is_clean = self.is_clean and reaped.all_gone
        counts = reaped.status, reaped.cpu_s, reaped.max_rss_kb, reaped.killed
        with contextlib.suppress(OSError):  # the engine is gone, which the next read detects
            self.control.send((REPORT % (*counts, self.is_clean, ended, self.reason or "-")).encode())

    # -- limits of the whole tree -----------------------------------------------------------------------------------

    def check_usage(self) -> None:
        """Check memory, processes and scratch of the tree against their limits, where the kernel does not."""
        assert self.reaper is not None
        processes = usage.tree_below(os.getpid())
        memory = self.memory_of(processes)
        cpu_s = self.reaper.cpu_s + usage.cpu_of(processes)
        if abs(memory - self.reported_memory) > MEMORY_REPORT_BYTES or cpu_s - self.reported_cpu_s > CPU_REPORT_S:
            self.reported_memory, self.reported_cpu_s = memory, cpu_s
            with contextlib.suppress(OSError):
                wire.send(self.control, {"event": "usage", "bytes": memory, "cpu_s": cpu_s})
        if self.checks_usage and memory > self.plan.memory_mb << 20:
            self.reason = "memory"
        elif self.checks_usage and len(processes) > self.plan.processes:
            self.reason = "processes"
        elif self.checks_usage and self.plan.has_loopback and tree.tcp_sockets() > MAX_TCP_SOCKETS:
            self.reason = "connections"
        elif self.plan.is_on_disk and _used_bytes(self.plan.written, self.plan.scratch_mb) > self.plan.scratch_mb << 20:
            self.reason = "disk"
        if self.reason is not None:
            self.finish()

    def memory_of(self, processes: list[int]) -> int:
        if self.plan.is_in_gvisor:
            buffers = 0 if self.plan.cgroups else gvisor.count_buffers(processes, self.plan.open_files)
            used = max(0, gvisor.used_memory() - self.own_sandbox_memory)
            return used + max(0, buffers - usage.FREE_SOCKETS) * usage.SOCKET_BYTES
        return usage.memory_of_tree(processes, self.own_pages, self.own_memory, self.count_sockets(processes))

    def count_sockets(self, processes: list[int]) -> int:
        """Return the number of the tree's sockets, where no cgroup counts their buffers."""
        if not self.checks_usage:
            return 0
        if self.plan.has_namespaces and not self.plan.network:
            return usage.sockets_of_namespace("self")
        return usage.sockets_of_processes(processes, self.plan.open_files)


def _used_bytes(directories: dict[str, list[str]], scratch_mb: int) -> int:
    """Return the bytes that files use; more than any limit if there are too many files to count."""
    total = 0
    for path, skip in directories.items():
        try:
            directory = os.open(path, OPEN_DIRECTORY)
        except OSError:
            continue  # the program removed our access
        used = used_bytes(directory, skip, min(MAX_COUNTED_FILES, inodes_of(scratch_mb)))
        os.close(directory)
        if used is None:
            return 1 << 62
        total += used
    return total
