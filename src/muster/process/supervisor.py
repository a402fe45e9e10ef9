"""The supervisor: a small process that owns every process of one scope and dies last.

It is the parent (and, as a subreaper, the adoptive parent) of everything started in its scope, so no process can
escape it, neither with setsid nor by double-forking. It reads a socket held by its owner. When the owner requests it
or is gone, the supervisor ends the scope: TERM, grace, then KILL until no child is left. Processes that hang in the
kernel (see unkillable.py) are reported and left to the next subreaper above.

Its program is this module and its imports, passed to `python -I -S -c` as text (see bootstrap.py), so Muster need not
be importable. Arguments: FD LEASE GRACE CGROUP DIRECTORY... Messages are JSON with a length prefix; descriptors are
sent with the length.

    state      leaves on                                           to
    serving    "close" from the owner, EOF, expiry of the lease    ending (without grace after a lease)
    ending     no child left, or none that KILL could end          (exit)

LEASE is the descriptor of the owner's lease (see lease.py), or -1. When it expires, the owner may be stopped while
other nodes have taken over, so the supervisor does not wait for it, unless it was stopped itself: then it stops its
processes until the lease is renewed (see lease_enforcer.py), and does nothing else. CGROUP names a control group to
create for the scope if that is permitted; it may be empty.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

from muster.process.capture import start_copier
from muster.process.cgroup import Cgroup, make_cgroup, oom_counter, oom_kills
from muster.process.lease_enforcer import LeaseAction, LeaseEnforcer
from muster.process.proctree import (
    MAX_POLL_S,
    POLL_S,
    become_subreaper,
    descendants,
    ended_child,
    is_leaving,
    kill_descendants,
    kill_groups,
    own_children,
    own_descendants,
    read_process,
    read_processes,
    send_signal,
    signal_groups,
)
from muster.process.unkillable import STUCK_S, KillProgress, LeftoverProcess, describe_leftover

LENGTH = struct.Struct("!I")
MAX_FDS = 5  # standard streams; for captured output also the pipe's read end and the file
LEASE = struct.Struct("=QB")  # expiry in nanoseconds of the clock below (0: none); 1 once a supervisor enforces it
LEASE_FENCED = 8  # offset of the second field, which supervisors write
CLOCK_BOOTTIME = 7  # the kernel's number: `time` has no name for it in a build with a C library older than 2.14
HELD_POLL_S = 0.02  # of stopped processes: what resumes the job may reach them after their supervisor
LEASE_POLL_S = 0.5  # of a lease without expiry: it may get one; less than the time in which processes must be killed
COPY_TIMEOUT_S = 2.0  # for captured output to reach its file at the end; slower copiers finish by themselves


def lease_clock() -> int:
    """Return the time of a clock that all processes of the machine share and that runs during suspend."""
    return time.clock_gettime_ns(CLOCK_BOOTTIME)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors. `close` reports a network filesystem that failed to write, which must not end this process."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


class Supervisor:
    """Serves one owner; see the state table of the module."""

    def __init__(self, owner: socket.socket, lease: int, grace: float, cgroup: Cgroup, directories: list[str]) -> None:
        self.lease = mmap.mmap(lease, LEASE.size) if lease != -1 else None
        self.enforcer = LeaseEnforcer()
        self.owner: socket.socket | None = owner
        self.grace = grace  # used if the owner dies before it sends one
        self.ending = False
        self.kills_since: float | None = None
        self.directories = directories  # removed if the owner dies
        self.children: dict[int, tuple[int, int]] = {}  # pid -> (owner's id of the request, OOM kills at the start)
        self.copying: set[int] = set()  # own children that write captured output
        self.signalled: set[int] = set()  # pids that got TERM or KILL
        self.reaped = 0  # number of ended children
        self.kill_progress = KillProgress()
        self.cgroup = cgroup
        self.oom_counter = oom_counter()
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self.wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.restore_signals()
        # Handlers that do nothing, not SIG_IGN: children would inherit that and ignore SIGTERM.
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)

    def restore_signals(self) -> None:
        """Reset signals for children, whatever the owner ignores or blocks (bash's `&` ignores two)."""
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for signum in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Popen restores these two
            if signal.getsignal(signum) is signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)

    def run(self) -> None:
        try:
            self.serve()
        finally:
            self.end()  # also after an internal error: no process may be left

    # -- serving ------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Start and report processes until the owner closes the scope or is gone."""
        while self.owner is not None:
            has_request = self.wait(None if self.lease is None else min(self.lease_left(), LEASE_POLL_S))
            self.reap()
            if not self.may_run():
                return
            if has_request and not self.handle_request():
                return

    def wait(self, seconds: float | None) -> bool:
        """Wait for the end of a child or a request, at most `seconds`; True if the owner sent one, or is gone.

        Not with `select`, which is limited to descriptors below 1,024: the owner's may have any number.
        """
        poll = select.poll()
        poll.register(self.wake_read, select.POLLIN)
        if self.owner is not None:
            poll.register(self.owner, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)]
        return self.owner is not None and self.owner.fileno() in ready

    def lease_left(self) -> float:
        """Return the seconds until the lease expires."""
        until, _ = LEASE.unpack_from(self.lease) if self.lease is not None else (0, 0)
        return max(0, until - lease_clock()) / 1e9 if until else float("inf")

    def may_run(self) -> bool:
        """Return whether the lease lasts; False if the processes must be killed, without a grace.

        After this process was stopped, it may take RESUME_GRACE_S until that is known; meanwhile no process runs.
        """
        if self.lease is None:
            return True
        while (action := self.check_lease(self.lease)) is LeaseAction.STOP:
            self.signal_all(signal.SIGSTOP)
            time.sleep(HELD_POLL_S)
        if action is LeaseAction.CONTINUE:
            self.signal_all(signal.SIGCONT)
        elif action is LeaseAction.KILL:
            self.grace = 0.0
            self.lease[LEASE_FENCED] = 1
        return action is not LeaseAction.KILL

    def check_lease(self, lease: mmap.mmap) -> LeaseAction:
        """Return what the lease demands. An owner that is gone renews nothing."""
        fenced = bool(lease[LEASE_FENCED]) or self.owner is None
        return self.enforcer.check(lease_clock() / 1e9, self.lease_left() == 0, fenced)

    def signal_all(self, signum: int) -> None:
        """Send a signal to all descendants, first to the groups of those that were started here.

        What resumes the job continues all processes as well, so it does not matter which ones were stopped before.
        """
        signal_groups(self.children, signum)
        for pid in own_descendants():
            if pid not in self.copying:  # no program of the run
                send_signal(pid, signum)

    def handle_request(self) -> bool:
        """Handle one message; False if the scope is to end."""
        assert self.owner is not None
        try:
            header, fds, _, _ = socket.recv_fds(self.owner, LENGTH.size, MAX_FDS)
            body = self.receive(LENGTH.unpack(header)[0]) if len(header) == LENGTH.size else b""
            self.owner.settimeout(None)
        except OSError:
            header = body = b""
        if not body:
            self.owner = None
            return False
        request = json.loads(body)
        if request["do"] == "spawn" and self.ending:
            self.send(event="refused", id=request["id"], error="the scope was closed")
            close_all(fds)
        elif request["do"] == "spawn":
            self.spawn(request, fds)
        elif request["do"] == "close":
            self.grace = request["grace"]
            return False
        return True

    def receive(self, size: int) -> bytes:
        assert self.owner is not None
        body = b""
        while len(body) < size:
            self.limit_by_lease()
            try:
                part = self.owner.recv(size - len(body))
            except socket.timeout:
                if self.may_run():  # the lease was renewed
                    continue
                raise
            if not part:
                return b""
            body += part
        return body

    def spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        """Start a process in a new session. The first three descriptors are its standard streams."""
        kills = oom_kills(self.oom_counter)
        try:
            if request["capture"] is not None:  # the copier ends by itself if nothing is started
                copier = start_copier(fds[3], fds[4], **request["capture"])
                self.copying.add(copier)
                self.send(event="copying", pid=copier)
            process = subprocess.Popen(
                request["argv"],
                cwd=request["cwd"],
                env=request["env"],
                stdin=fds[0],
                stdout=fds[1],
                stderr=fds[2],
                start_new_session=True,
                preexec_fn=self.cgroup.enter if self.cgroup.directory is not None else None,
            )
        except (OSError, ValueError) as error:
            self.send(event="refused", id=request["id"], error=str(error))
        else:
            process.returncode = 0  # Popen must not reap it: that would take the status
            self.children[process.pid] = request["id"], kills
            self.send(event="spawned", id=request["id"], pid=process.pid)
        finally:
            close_all(fds)

    def reap(self) -> bool:
        """Reap every ended child and report it; False if no child is left."""
        try:
            while os.read(self.wake_read, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid = ended_child()
            except ChildProcessError:
                return False
            if pid is None:
                return True
            if self.kills_since is not None:
                kill_groups([os.getpgid(pid)])
            _, status = os.waitpid(pid, 0)
            self.reaped += 1
            if pid in self.copying:
                self.copying.discard(pid)
                self.send(event="copied", pid=pid)
            else:
                self.report_exit(pid, status)

    def report_exit(self, pid: int, status: int) -> None:
        number, before = self.children.pop(pid, (None, None))
        kills = oom_kills(self.oom_counter) - before if status and before is not None else 0
        signalled = pid in self.signalled
        self.send(event="exited", id=number, pid=pid, status=status, signalled=signalled, oom_kills=kills)

    def send(self, **message: Any) -> None:
        if self.owner is None:
            return
        body = json.dumps(message).encode()
        left = LENGTH.pack(len(body)) + body
        try:
            while left:
                self.limit_by_lease()
                try:
                    left = left[self.owner.send(left) :]
                except socket.timeout:
                    if not self.may_run():
                        raise
            self.owner.settimeout(None)
        except OSError:
            self.owner = None

    def limit_by_lease(self) -> None:
        """Let calls on the owner's socket wait no longer than the lease: a stopped owner may stop in a message.

        They wait no longer than usual, either: a long wait would look as if this process was stopped.
        """
        if self.owner is not None:
            self.owner.settimeout(None if self.lease is None else min(self.lease_left() + 0.001, LEASE_POLL_S))

    # -- ending -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Send TERM, wait for the grace, KILL until only unkillable processes are left; then report them."""
        self.ending = True
        start = seen = time.monotonic()
        killed: set[int] = set()
        left: list[LeftoverProcess] = []
        self.kill_progress.note_already_killed(
            pid for pid in own_children() if pid not in self.children and pid not in self.copying
        )
        known, pause = 0, POLL_S  # number of processes that got a signal; time until the next search for others
        has_children = self.reap()
        while has_children:
            if self.grace:
                self.may_run()  # else there is no grace
            now = time.monotonic()
            if now - start < self.grace and not self.send_term():
                self.grace = 0.0  # no process is left to wait for
            if now - start < self.grace or self.kill(killed):
                seen = now
            elif now - seen > COPY_TIMEOUT_S:
                # Left: copiers, programs that run as another user, and processes that hang in the kernel.
                left = self.describe_leftovers()
                break
            pause = min(2 * pause, MAX_POLL_S) if len(self.signalled) == known else POLL_S
            known = len(self.signalled)
            grace_left = start + self.grace - time.monotonic()
            has_children = self.reap_for(min(pause, grace_left) if grace_left > 0 else pause)
        self.cgroup.remove()
        records = [one._asdict() for one in left]
        self.send(event="closed", killed=len(killed), seconds=time.monotonic() - start, left=records)
        self.remove_directories()

    def describe_leftovers(self) -> list[LeftoverProcess]:
        """Describe the processes that are left, without copiers. The next subreaper above, or init, adopts them."""
        rest = [describe_leftover(pid) for pid in descendants(os.getpid()) if pid not in self.copying]
        return [one for one in rest if one is not None]

    def send_term(self) -> bool:
        """Send TERM once to the group of each started process, and once to each orphan; False if none may react.

        Started processes come first: often no orphans are left after their end. A process that another one has killed
        and that hangs cannot use the grace.
        """
        known = [pid for pid in self.children if pid not in self.signalled]
        for pid in known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGTERM)
        self.signalled.update(known)
        if known:
            return True
        # The kernel may leave out a child while another one ends: only all of /proc shows that none is left.
        left = self.live_children(own_children()) or self.live_children(read_processes())
        for pid in [pid for pid in left if pid not in self.signalled]:
            send_signal(pid, signal.SIGTERM)
        self.signalled.update(left)
        return len(self.kill_progress.hanging(left)) < len(left)

    def live_children(self, pids: Iterable[int]) -> list[int]:
        """Return the given processes that are live children of this one, without copiers."""
        found = ((pid, read_process(pid)) for pid in pids if pid not in self.copying)
        return [pid for pid, process in found if process is not None and process[0] == os.getpid()]

    def kill_started(self) -> None:
        """KILL the groups of all started processes, and the control group, without a scan of /proc.

        After the end of a lease every moment counts: a scan takes half a second on a busy host with many processes.
        """
        self.signalled.update(self.children)
        self.cgroup.kill()
        kill_groups(self.children)

    def kill(self, killed: set[int]) -> bool:
        """KILL all descendants; True if one of them may still end."""
        if self.kills_since is None:
            self.kills_since = time.monotonic()
            if self.lease_left() == 0:
                self.kill_started()
        reached, _ = kill_descendants(spared=self.copying, before=self.kill_progress.note)
        killed.update(reached)
        self.signalled.update(reached)
        in_group = self.cgroup.kill() and time.monotonic() - self.kills_since < STUCK_S
        return in_group or len(self.kill_progress.hanging(reached)) < len(reached)

    def remove_directories(self) -> None:
        """Remove the scope's directories if the owner is gone."""
        if not self.directories or not self.owner_is_gone():
            return
        from muster.process.file_trees import remove_tree  # lazily: the import would slow down every start

        for directory in self.directories:
            remove_tree(directory)
            with contextlib.suppress(OSError):  # its parent, if that is empty
                os.rmdir(os.path.dirname(directory))

    def owner_is_gone(self) -> bool:
        """Whether the owner is dead. After the lease has expired, wait until a stopped owner continues or dies."""
        if self.owner is None or self.lease_left():
            return self.owner is None
        pid = struct.unpack("3i", self.owner.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        while self.owner is not None:
            self.handle_request()
        return is_leaving(pid)

    def reap_for(self, seconds: float) -> bool:
        """Reap children for this time, but only POLL_S once one has ended: others may be orphans now.

        Returns False as soon as no child is left, and True early after a further "close", which may shorten the grace.
        """
        start = time.monotonic()
        while (left := start + seconds - time.monotonic()) > 0:
            reaped, lease_left = self.reaped, self.lease_left()
            if self.wait(min(left, lease_left) if lease_left else left):
                grace = self.grace
                self.handle_request()
                self.grace = min(grace, self.grace)
                return self.reap()
            if not self.reap():
                return False
            if self.reaped != reaped:
                seconds = min(seconds, POLL_S)
            if lease_left and not self.lease_left():
                return True
        return True


def main() -> None:
    """Detach (so that killing the owner's children does not kill the supervisor), become a subreaper, serve."""
    owner_fd, lease, grace, cgroup, *directories = sys.argv[1:]
    owner = socket.socket(fileno=int(owner_fd))
    if os.fork():
        os._exit(0)
    os.setsid()
    become_subreaper()
    made = make_cgroup(cgroup) if cgroup else Cgroup()
    supervisor = Supervisor(owner, int(lease), float(grace), made, directories)
    supervisor.send(event="keeping", pid=os.getpid(), cgroup=made.directory)
    supervisor.run()
