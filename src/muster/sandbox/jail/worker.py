"""A worker: builds its walls, then forks one execution after the other, and ends each with all it left behind.

It is told what to do by the server, over a socket of packets, and it reports there:

    from the server                                           to the server
    spawn, again  + job socket, stdout, stderr: fork the next born + pidfd   at first, by whoever forked it
                  one; `again`: in the scratch as it is       ready          the walls stand; or: failed, why
    look          at what the tree takes                      ended          status, usage, reason, is all clean?
    interrupt     SIGINT to the execution                     memory         of the tree, when it has changed
    kill REASON   end the tree

It reads no code, no input and no output. A closed socket is its end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket

from muster.process.file_trees import OPEN_DIRECTORY, empty_directory, used_bytes
from muster.sandbox.jail import confine, execution, kernel, state, tree, wire
from muster.sandbox.jail.confine import ConfinementPlan, Walls

TELL_BYTES = 8 << 20  # a change of memory worth telling
SPAWN, SPAWN_AGAIN, LOOK, INTERRUPT, KILL = b"spawn", b"again", b"look", b"interrupt", b"kill "
ORDER = 100  # the longest
REPORT = "ended %d %.4f %d %d %d %s"  # status, CPU seconds, max RSS in KB, others killed, clean, reason or -
MOST_ENTRIES = 20000  # files in the scratch that are looked at
# What is emptied for the next program, which may be waiting already: a worker with more is replaced, which takes a few
# milliseconds. Under Landlock every step in a tree costs time in proportion to its depth.
MOST_REMOVED, MOST_LEVELS = 1000, 50


def main(control: socket.socket, plan: ConfinementPlan) -> None:
    """The life of a worker, in a fork of the zygote's. Never returns."""
    try:
        _restore_signals()
        confine.enter_namespaces(plan)
        pid = os.fork() if plan.has_namespaces else 0
        if pid or not plan.has_namespaces:
            _tell_birth(control, pid or os.getpid())
        if pid:
            os._exit(0)
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        _protect_from_oom_killer()
        walls = confine.confine(plan)
        os.environ.update(HOME=plan.home, TMPDIR=plan.temporary)
        worker = JailWorker(control, plan, walls)
        wire.send(control, {"event": "ready", "proc": walls.proc})
    except BaseException as error:
        with contextlib.suppress(OSError):
            wire.send(control, {"event": "failed", "why": str(error) or type(error).__name__})
        os._exit(1)
    try:
        worker.serve()
    finally:
        os._exit(0)


def _tell_birth(control: socket.socket, pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError):  # before Linux 5.3, or in a Python that was built before it
        wire.send(control, {"event": "born", "pid": pid})
        return
    wire.send(control, {"event": "born", "pid": pid}, (pidfd,))
    os.close(pidfd)


def _restore_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def _protect_from_oom_killer() -> None:
    """Where we may: what we fork is to be killed, not we. An execution makes itself the first choice in any case."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")


class JailWorker:
    """Serves the server; see the module's table. Between two forks it does as little as it can: see wire.py."""

    def __init__(self, control: socket.socket, plan: ConfinementPlan, walls: Walls) -> None:
        self.control, self.plan, self.walls = control, plan, walls
        self.reaper: tree.Reaper | None = None
        self.reason: str | None = None
        self.is_clean = True
        self.baseline = tree.memory_of(os.getpid())
        self.told_memory = 0
        self.scratch = [(state.Place(path), keep) for path, keep in plan.scratch.items()]
        self.attributes = state.attributes()
        self.watches = not plan.cgroups  # memory and processes; where there are cgroups, the kernel does
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.ends = tree.Ends(self.poll)

    def serve(self) -> None:
        control = self.control.fileno()
        gc.disable()
        while True:
            for fd, _ in self.poll.poll():
                if fd == control and not self.obey():
                    self.end()
                    return
            reaper = self.reaper
            if reaper is None:
                continue
            self.ends.heard()
            reaper.collect()
            if reaper.first_has_ended:
                self.end()

    def obey(self) -> bool:
        """Carry out one order; False when the server is gone."""
        order, fds = wire.receive_bytes(self.control, ORDER)
        if not order:
            return False
        if order in (SPAWN, SPAWN_AGAIN):
            self.spawn(order == SPAWN, fds)
        elif self.reaper is not None and not self.reaper.first_has_ended:
            if order == LOOK:
                self.look()
            elif order == INTERRUPT:
                os.kill(self.reaper.first, signal.SIGINT)
            elif order.startswith(KILL):
                self.reason = order[len(KILL) :].decode()
                self.end()
        return True

    def spawn(self, fresh: bool, fds: list[int]) -> None:
        """Fork the next execution; it waits for its job by itself.

        A failure before the fork is reported to the server: the job, if it was sent already, was not begun. A failure
        after it ends this worker: the server then reports the program as lost, since it may have begun.
        """
        self.reason, self.told_memory = None, 0
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
            execution.main(fds, self.walls.execution_rules)
        for fd in fds:
            os.close(fd)
        self.reaper = tree.Reaper(pid, self.plan.owns_processes)
        self.ends.watch(pid)

    def why_unfit(self, fresh: bool, fds: list[int]) -> str | None:
        """What keeps this worker from running another program as it ran its first; None: nothing does."""
        if len(fds) != execution.DESCRIPTORS:
            return "it could not take the execution's descriptors"
        if state.attributes() != self.attributes:
            return "a program changed its limits or its scheduling"
        if fresh:
            for place, keep in self.scratch:
                if not place.is_unchanged():
                    return f"a program changed {place.path}"
                if not empty_directory(place.fd, keep, MOST_REMOVED, MOST_LEVELS):
                    return f"{place.path} could not be emptied"
        return None

    def end(self) -> None:
        """End the tree and report."""
        if self.reaper is None:
            return
        self.ends.forget()
        reaped = self.reaper.finish()
        self.reaper = None
        self.is_clean = self.is_clean and reaped.all_gone
        words = (reaped.status, reaped.cpu_s, reaped.max_rss_kb, reaped.killed, self.is_clean, self.reason or "-")
        with contextlib.suppress(OSError):  # nobody listens any more: the next order is our end
            self.control.send((REPORT % words).encode())

    # -- limits of the whole tree -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Memory, processes and scratch of the tree against their limits, where the kernel does not count it."""
        family = tree.family()
        memory = sum(max(0, tree.memory_of(pid) - self.baseline) for pid in family)
        if abs(memory - self.told_memory) > TELL_BYTES:
            self.told_memory = memory
            with contextlib.suppress(OSError):
                wire.send(self.control, {"event": "memory", "bytes": memory})
        if self.watches and memory > self.plan.memory_mb << 20:
            self.reason = "memory"
        elif self.watches and len(family) > self.plan.processes:
            self.reason = "processes"
        elif self.plan.is_on_disk and _used(self.plan.written) > self.plan.scratch_mb << 20:
            self.reason = "disk"
        if self.reason is not None:
            self.end()


def _used(places: dict[str, list[str]]) -> int:
    """Bytes that files take; more than any limit when there are too many to look at."""
    total = 0
    for path, skip in places.items():
        try:
            directory = os.open(path, OPEN_DIRECTORY)
        except OSError:
            continue  # its owner, the program, locked it
        used = used_bytes(directory, skip, MOST_ENTRIES)
        os.close(directory)
        if used is None:
            return 1 << 62
        total += used
    return total
