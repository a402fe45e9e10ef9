"""The keeper: a small process that owns every process of one scope and dies last.

It is the parent (and, as a subreaper, the foster parent) of everything started in its scope, so nothing started
there can escape it: not with setsid, not by double-forking. It watches a socket held by its owner. When the owner
asks for it, or is gone, the keeper ends the scope: TERM, grace, KILL, again and again until no child is left.

The file is self-contained: it is run as `python -I -S -c <this source> FD LEASE GRACE DIRECTORY...`, in an environment
in which Muster need not be importable. Messages are JSON with a length in front; descriptors travel beside the length.

    state      leaves on                                           to
    serving    "close" from the owner, EOF, the end of the lease   ending (after a lease without any grace)
    ending     no child left                                       (exit)

LEASE is the descriptor of the owner's lease (see lease.py), or -1: it may have been stopped while others go on without
it, and must not be waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

LENGTH = struct.Struct("!I")
PR_SET_CHILD_SUBREAPER = 36
THREADS = 17  # index of num_threads among the fields of /proc/<pid>/stat that follow the name
LEASE = struct.Struct("=Q")  # until when what is owned may run: nanoseconds of the clock below; 0: for ever
LOOK_S = 1.0  # how often a lease without an end is looked at: it may get one
POLL_S = 0.02  # how often an ending scope is looked at; nothing signals "a grandchild was adopted"


def become_subreaper() -> None:
    """Adopt every orphaned descendant instead of letting it go to init."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def read_processes() -> dict[int, tuple[int, int]]:
    """pid -> (parent, process group) of every process that is not yet dead (zombies are left out).

    A process whose main thread has ended looks like a zombie while its other threads run: it counts as alive.
    """
    processes = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X") or int(fields[THREADS]) > 1:
            processes[int(entry)] = int(fields[1]), int(fields[2])
    return processes


def descendants(root: int, processes: dict[int, tuple[int, int]] | None = None) -> list[int]:
    """Every live process below root, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in (read_processes() if processes is None else processes).items():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:  # grows while we walk it
        found.extend(children.get(pid, ()))
    return found


def kill_descendants() -> tuple[list[int], list[int]]:
    """KILL everything below this process, once; returns whom it reached, and who is not ours to signal.

    Their groups too: the kernel kills a group in one step, while a process that forks and leaves, again and again,
    is never there any more when a list of pids has been read.
    """
    processes = read_processes()
    found = descendants(os.getpid(), processes)
    foreign = [pid for pid in found if not send_signal(pid, signal.SIGKILL)]
    # 0 would mean our own group, and 1 everybody: a child of another pid namespace may show such a number.
    for group in {processes[pid][1] for pid in found} - {0, 1, os.getpgrp()}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    return [pid for pid in found if pid not in foreign], foreign


def send_signal(pid: int, signum: int) -> bool:
    """False when it is not ours to signal: a set-user-id program has become another user."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def lease_clock() -> int:
    """One clock for all processes of the machine, which also runs while it sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Keeper:
    """Serves one owner; see the module's state table."""

    def __init__(self, owner: socket.socket, lease: int, grace: float, directories: list[str]) -> None:
        self.lease = mmap.mmap(lease, LEASE.size, mmap.MAP_SHARED, mmap.PROT_READ) if lease != -1 else None
        self.owner: socket.socket | None = owner
        self.grace = grace  # for the case that the owner dies and cannot name one
        self.ending = False
        self.directories = directories  # in that case nobody else removes them
        self.children: dict[int, int] = {}  # pid -> the owner's id for it, of the processes it asked for
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
            watched: list[Any] = [self.owner, self.wake_read]
            ready, _, _ = select.select(watched, [], [], None if self.lease is None else min(self.lease_left(), LOOK_S))
            self.reap()
            if self.lease_left() == 0:
                return
            if self.owner in ready and not self.take_request():
                return

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
            header, fds, _, _ = socket.recv_fds(self.owner, LENGTH.size, 3)
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
        """Start one process in a session of its own, its standard streams being the three descriptors sent."""
        try:
            process = subprocess.Popen(
                request["argv"], cwd=request["cwd"], env=request["env"],
                stdin=fds[0], stdout=fds[1], stderr=fds[2], start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            self.tell(event="refused", id=request["id"], error=str(error))
        else:
            process.returncode = 0  # ours to reap, not Popen's: its own waiting would steal the status
            self.children[process.pid] = request["id"]
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
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.tell(event="exited", id=self.children.pop(pid, None), pid=pid, status=status)

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
        """TERM, grace, KILL, until nothing is left; then say so and exit."""
        self.ending = True
        start = time.monotonic()
        termed: set[int] = set()
        killed: set[int] = set()
        while self.reap():
            if time.monotonic() - start < self.grace:
                self.ask_to_leave(termed)
            else:
                reached, foreign = kill_descendants()
                killed.update(reached)
                if foreign and not reached:
                    break  # only programs that have become another user are left: we may not end them
            self.wait_while_ending()
        self.tell(event="closed", killed=len(killed), seconds=time.monotonic() - start)
        for directory in self.directories if self.owner_is_gone() else ():
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):  # what it was made in, if nobody else uses that
                os.rmdir(os.path.dirname(directory))

    def owner_is_gone(self) -> bool:
        """After the end of a lease it is waited for: it may be stopped, and then either go on or be killed."""
        if self.owner is None or self.lease_left():
            return self.owner is None
        pid = struct.unpack("3i", self.owner.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        while self.owner is not None:
            self.take_request()
        return pid not in read_processes()

    def wait_while_ending(self) -> None:
        """A moment, or until a child ends, or the owner loses its patience: a further "close" with less grace."""
        watched: list[Any] = [self.wake_read] if self.owner is None else [self.wake_read, self.owner]
        self.lease_left()
        if self.owner in select.select(watched, [], [], POLL_S)[0]:
            grace = self.grace
            self.take_request()
            self.grace = min(grace, self.grace)

    def ask_to_leave(self, termed: set[int]) -> None:
        """TERM once to the group of each process asked for, and once to each orphan as it is adopted."""
        ours = [pid for pid, (parent, _) in read_processes().items() if parent == os.getpid()]
        for pid in [pid for pid in ours if pid not in termed]:
            termed.add(pid)
            if pid in self.children:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGTERM)
            else:
                send_signal(pid, signal.SIGTERM)


def main() -> None:
    """Detach (so that whoever ends the owner's children does not end the keeper), adopt, keep."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    if os.fork():
        os._exit(0)
    os.setsid()
    become_subreaper()
    keeper = Keeper(owner, int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
    keeper.tell(event="keeping", pid=os.getpid())
    keeper.run()


if __name__ == "__main__":
    main()
