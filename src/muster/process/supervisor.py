"""The supervisor: a small process that owns every process of one scope and dies last.

It is the parent (and, as a subreaper, the foster parent) of everything started in its scope, so nothing started
there can escape it: not with setsid, not by double-forking. It watches a socket held by its owner. When the owner
asks for it, or is gone, the supervisor ends the scope: TERM, grace, KILL, again and again until no child is left, or
only what hangs in the kernel (see ending.py): that is reported and left to the next subreaper above.

Its program is this module and those it imports, handed to `python -I -S -c` as text (see program.py), in an environment
in which Muster need not be importable: FD LEASE GRACE CGROUP DIRECTORY... Messages are JSON with a length in front;
descriptors travel beside the length.

    state      leaves on                                           to
    serving    "close" from the owner, EOF, the end of the lease   ending (after a lease without any grace)
    ending     no child left, or none that KILL could end          (exit)

LEASE is the descriptor of the owner's lease (see lease.py), or -1: it may have been stopped while others go on without
it, and must not be waited for. CGROUP names a control group to be made for the scope, where that is allowed; it may be
empty.
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
from typing import Any

from muster.process.capture import start_copying
from muster.process.cgroup import Cgroup, make_cgroup, oom_counter, oom_kills
from muster.process.proctree import (
    POLL_S,
    become_subreaper,
    descendants,
    ended_child,
    is_leaving,
    kill_descendants,
    kill_groups,
    own_children,
    read_processes,
    send_signal,
)
from muster.process.unkillable import STUCK_S, Dying, Left, look_at

LENGTH = struct.Struct("!I")
MOST_FDS = 5  # standard streams; where its output is captured, the pipe's other end and the file
LEASE = struct.Struct("=Q")  # until when what is owned may run: nanoseconds of the clock below; 0: for ever
CLOCK_BOOTTIME = 7  # the kernel's number: `time` has no name for it in a build with a C library older than 2.14
LOOK_S = 1.0  # how often a lease without an end is looked at: it may get one
COPY_S = 2.0  # for captured output to reach its file when all have ended; it does so without us if that takes longer


def lease_clock() -> int:
    """One clock for all processes of the machine, which also runs while it sleeps."""
    return time.clock_gettime_ns(CLOCK_BOOTTIME)


class Supervisor:
    """Serves one owner; see the module's state table."""

    def __init__(self, owner: socket.socket, lease: int, grace: float, cgroup: Cgroup, directories: list[str]) -> None:
        self.lease = mmap.mmap(lease, LEASE.size, mmap.MAP_SHARED, mmap.PROT_READ) if lease != -1 else None
        self.owner: socket.socket | None = owner
        self.grace = grace  # for the case that the owner dies and cannot name one
        self.ending = False
        self.kills_since: float | None = None
        self.directories = directories  # in that case nobody else removes them
        self.children: dict[int, tuple[int, int]] = {}  # pid -> owner's id of what it asked for, OOM kills before
        self.copying: set[int] = set()  # our own, which write captured output
        self.signalled: set[int] = set()  # whom we have asked, or made, to leave
        self.dying = Dying()
        self.cgroup = cgroup
        self.oom_counter = oom_counter()
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(self.wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.restore_signals()
        # Handlers that do nothing, not SIG_IGN: children would inherit that, and never hear a SIGTERM.
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, lambda *_: None)

    def restore_signals(self) -> None:
        """Children start as from a login shell, whatever the owner ignores or blocks (bash's `&` ignores two)."""
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for signum in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python's own, which Popen restores
            if signal.getsignal(signum) is signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)

    def run(self) -> None:
        try:
            self.serve()
        finally:
            self.end()  # also after a defect of our own: what we started must not be left

    # -- serving ------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Start and report processes until the owner closes the scope or is gone."""
        while self.owner is not None:
            spoke = self.wait(None if self.lease is None else min(self.lease_left(), LOOK_S))
            self.reap()
            if self.lease_left() == 0:
                return
            if spoke and not self.take_request():
                return

    def wait(self, seconds: float | None) -> bool:
        """Wait for the end of a child or a request, at most so long; True when the owner has sent one, or is gone.

        By poll: `select` takes no descriptor above 1,023, and the owner's may have any number (see pass_fds).
        """
        poll = select.poll()
        poll.register(self.wake_read, select.POLLIN)
        if self.owner is not None:
            poll.register(self.owner, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)]
        return self.owner is not None and self.owner.fileno() in ready

    def lease_left(self) -> float:
        """Seconds. When there are none, no grace is left either."""
        (until,) = LEASE.unpack_from(self.lease) if self.lease is not None else (0,)
        left = max(0, until - lease_clock()) / 1e9 if until else float("inf")
        self.grace = self.grace if left else 0.0
        return left

    def take_request(self) -> bool:
        """Carry out one message; False when the scope is to end."""
        assert self.owner is not None
        try:
            header, fds, _, _ = socket.recv_fds(self.owner, LENGTH.size, MOST_FDS)
            body = self.receive(LENGTH.unpack(header)[0]) if len(header) == LENGTH.size else b""
        except OSError:
            header = body = b""
        if not body:
            self.owner = None
            return False
        request = json.loads(body)
        if request["do"] == "spawn" and self.ending:
            self.tell(event="refused", id=request["id"], error="the scope was closed")
            for fd in fds:
                os.close(fd)
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
            part = self.owner.recv(size - len(body))
            if not part:
                return b""
            body += part
        return body

    def spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        """Start one process in a session of its own, its standard streams being the first descriptors sent."""
        kills = oom_kills(self.oom_counter)
        try:
            if request["capture"] is not None:  # ends by itself if nothing is started
                copier = start_copying(fds[3], fds[4], **request["capture"])
                self.copying.add(copier)
                self.tell(event="copying", pid=copier)
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
            self.tell(event="refused", id=request["id"], error=str(error))
        else:
            process.returncode = 0  # ours to reap, not Popen's: its own waiting would steal the status
            self.children[process.pid] = request["id"], kills
            self.tell(event="spawned", id=request["id"], pid=process.pid)
        finally:
            for fd in fds:
                os.close(fd)

    def reap(self) -> bool:
        """Collect every ended child and report it; False when no child is left."""
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
            if pid in self.copying:
                self.copying.discard(pid)
                self.tell(event="copied", pid=pid)
            else:
                self.tell_exit(pid, status)

    def tell_exit(self, pid: int, status: int) -> None:
        number, before = self.children.pop(pid, (None, None))
        kills = oom_kills(self.oom_counter) - before if status and before is not None else 0
        asked = pid in self.signalled
        self.tell(event="exited", id=number, pid=pid, status=status, signalled=asked, oom_kills=kills)

    def tell(self, **message: Any) -> None:
        if self.owner is None:
            return
        body, left = json.dumps(message).encode(), self.lease_left()
        try:
            self.owner.settimeout(None if left == float("inf") else left + 0.001)  # not beyond the lease
            self.owner.sendall(LENGTH.pack(len(body)) + body)
            self.owner.settimeout(None)
        except OSError:
            self.owner = None

    # -- ending -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """TERM, grace, KILL, until nothing is left that it could end; then say so, and what is left, and exit."""
        self.ending = True
        start = seen = time.monotonic()
        killed: set[int] = set()
        left: list[Left] = []
        self.dying.expect(pid for pid in own_children() if pid not in self.children and pid not in self.copying)
        while self.reap():
            now = time.monotonic()
            if now - start < self.grace and not self.ask_to_leave():
                self.grace = 0.0  # no process is left that could use it
            if now - start < self.grace or self.kill(killed):
                seen = now
            elif now - seen > COPY_S:
                # Only those that copy, programs that have become another user, and what hangs in the kernel.
                left = self.look_at_rest()
                break
            self.wait_while_ending()
        self.cgroup.remove()
        told = [one._asdict() for one in left]
        self.tell(event="closed", killed=len(killed), seconds=time.monotonic() - start, left=told)
        self.remove_directories()

    def look_at_rest(self) -> list[Left]:
        """Describe what is left, besides those that copy. The next subreaper above adopts it, or init."""
        rest = [look_at(pid) for pid in descendants(os.getpid()) if pid not in self.copying]
        return [one for one in rest if one is not None]

    def ask_to_leave(self) -> bool:
        """TERM once to the group of each process asked for, and once to each orphan; whether there is one to wait for.

        First to those we know. Who else is there is looked for when that did not end all: it takes a look at everybody.
        A grace is of no use to one that another has killed and that hangs.
        """
        known = [pid for pid in self.children if pid not in self.signalled]
        for pid in known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGTERM)
        self.signalled.update(known)
        if known:
            return True
        ours = [pid for pid, (parent, _) in read_processes().items() if parent == os.getpid()]
        left = [pid for pid in ours if pid not in self.copying]
        for pid in [pid for pid in left if pid not in self.signalled]:
            send_signal(pid, signal.SIGTERM)
        self.signalled.update(left)
        return len(self.dying.hanging(left)) < len(left)

    def kill(self, killed: set[int]) -> bool:
        """KILL all; True when one of those killed may still end."""
        self.kills_since = self.kills_since or time.monotonic()
        reached, _ = kill_descendants(spared=self.copying, before=self.dying.note)
        killed.update(reached)
        self.signalled.update(reached)
        in_group = self.cgroup.kill() and time.monotonic() - self.kills_since < STUCK_S
        return in_group or len(self.dying.hanging(reached)) < len(reached)

    def remove_directories(self) -> None:
        """For an owner that cannot do it any more."""
        if not self.directories or not self.owner_is_gone():
            return
        from muster.process.file_trees import remove_tree  # here, since it costs every start of a supervisor time

        for directory in self.directories:
            remove_tree(directory)
            with contextlib.suppress(OSError):  # what it was made in, if nobody else uses that
                os.rmdir(os.path.dirname(directory))

    def owner_is_gone(self) -> bool:
        """After the end of a lease it is waited for: it may be stopped, and then either go on or be killed."""
        if self.owner is None or self.lease_left():
            return self.owner is None
        pid = struct.unpack("3i", self.owner.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        while self.owner is not None:
            self.take_request()
        return is_leaving(pid)

    def wait_while_ending(self) -> None:
        """A moment, or until a child ends, or the owner loses its patience: a further "close" with less grace."""
        self.lease_left()
        if self.wait(POLL_S):
            grace = self.grace
            self.take_request()
            self.grace = min(grace, self.grace)


def main() -> None:
    """Detach (so that whoever ends the owner's children does not end the supervisor), adopt, keep."""
    owner_fd, lease, grace, cgroup, *directories = sys.argv[1:]
    owner = socket.socket(fileno=int(owner_fd))
    if os.fork():
        os._exit(0)
    os.setsid()
    become_subreaper()
    made = make_cgroup(cgroup) if cgroup else Cgroup()
    supervisor = Supervisor(owner, int(lease), float(grace), made, directories)
    supervisor.tell(event="keeping", pid=os.getpid(), cgroup=made.directory)
    supervisor.run()
