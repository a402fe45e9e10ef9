"""A filesystem that passes every operation through to a directory, and injects faults: `python -m ... DIR MOUNT`.

It is FUSE without a library. By default the kernel caches nothing, so that this process sees, and can spoil, every
operation. One thread handles all requests; those that a fault holds back wait in a list. Commands come as JSON lines on
standard input, answers go to standard output. It is a process of its own, because a test that started a child in the
mounted directory would wait for itself. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import select
import stat
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

IN_HEADER, OUT_HEADER = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
INIT_OUT = struct.Struct("=IIIIHHIIHH32x")
ATTR = struct.Struct("=6Q10I")
ENTRY_OUT, ATTR_OUT, OPEN_OUT = struct.Struct("=4QII"), struct.Struct("=QII"), struct.Struct("=QIi")
SETATTR_IN, READ_IN, DIRENT = struct.Struct("=IIQQQQQQIIIIIIII"), struct.Struct("=QQIIQII"), struct.Struct("=QQII")
STATFS_OUT = struct.Struct("=5Q4I24x")
ATOMIC_TRUNCATE, BIG_WRITES, PARALLEL_DIROPS, MAX_PAGES = 1 << 3, 1 << 5, 1 << 18, 1 << 22
MAX_WRITE_BYTES, DIRECT_IO, ROOT = 128 << 10, 1, 1
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_ATIME_NOW, SET_MTIME_NOW = 1, 2, 4, 8, 16, 32, 128, 256
FORGET, INIT, INTERRUPT, DESTROY, BATCH_FORGET = 2, 26, 36, 38, 42
MNT_DETACH = 2
NAMES = {
    1: "lookup",
    3: "getattr",
    4: "setattr",
    5: "readlink",
    6: "symlink",
    8: "mknod",
    9: "mkdir",
    10: "unlink",
    11: "rmdir",
    12: "rename",
    13: "link",
    14: "open",
    15: "read",
    16: "write",
    17: "statfs",
    18: "release",
    20: "fsync",
    25: "flush",
    27: "opendir",
    28: "readdir",
    29: "releasedir",
    30: "fsyncdir",
    35: "create",
    45: "rename",
}
UNDER_EXEC_LOCK = ("flush", "release")  # operations of `exec`, which locks the process's files in /proc
ENDS_QUIETLY = ("release", "releasedir")  # the kernel ignores their answers
ALLOCATES = ("create", "write", "mkdir", "mknod", "symlink", "link")  # what a full filesystem refuses


@dataclass
class Fault:
    """What happens to the operations that it matches, from the first match on, for `seconds` and at most `count` times.

    kind: hang (until it is over), full, stale (answers of `seconds` ago), or the name of an error.
    """

    kind: str
    operations: str = ".*"
    path: str = ".*"
    rank: str | None = None  # of the node, from the environment of the process that asks; None: any process
    seconds: float = 1e9
    count: int = 1 << 30
    skip: int = 0  # so many matches first
    spreads: bool = (
        False  # from the first match on, it strikes every operation: as a server that is lost at this moment
    )
    began: float | None = None
    hits: int = 0

    def strikes(self, request: Request) -> bool:
        """Whether the fault applies to the request, which counts as a match then."""
        spread = self.spreads and self.began is not None
        if self.over() or not (spread or self._matches(request)):
            return False
        if self.kind == "full" and request.name not in ALLOCATES:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.began = time.monotonic() if self.began is None else self.began
        self.hits += 1
        return True

    def over(self) -> bool:
        late = self.began is not None and time.monotonic() >= self.began + self.seconds
        return late or self.hits >= self.count

    def holds(self) -> bool:
        """Whether requests that this fault has stopped still wait."""
        return self.began is not None and time.monotonic() < self.began + self.seconds

    def _matches(self, request: Request) -> bool:
        if not re.fullmatch(self.operations, request.name) or not re.fullmatch(self.path, request.path):
            return False
        return self.rank is None or request.rank() == self.rank


@dataclass
class Node:
    """A file or directory that the kernel knows: an O_PATH descriptor, and the path it was last seen under."""

    fd: int
    path: str
    lookups: int = 0


@dataclass
class Request:
    """One request of the kernel. `path`: below the mounted directory; the new name of a rename or link."""

    opcode: int
    unique: int
    node: int
    uid: int
    gid: int
    pid: int
    body: bytes
    path: str = ""
    held_by: Fault | None = None

    @property
    def name(self) -> str:
        return NAMES.get(self.opcode, "other")

    def names(self) -> tuple[str, ...]:
        """The paths that the operation changes."""
        if self.opcode not in (12, 45):
            return (self.path,)
        source = self.body[8 if self.opcode == 12 else 16 :].split(b"\0")[0].decode(errors="replace")
        return self.path, _join(os.path.dirname(self.path), source)

    def process(self) -> int:
        """The pid of the process that asks, which the kernel names by its thread; 0 if the thread has ended."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/status", "rb") as file:
            found = re.search(rb"^Tgid:\s*(\d+)", file.read(), re.MULTILINE)
            return int(found[1]) if found else 0
        return 0

    def rank(self) -> str | None:
        """The MUSTER_RANK of the process that asks; None for `flush`.

        A program that begins closes its predecessor's files. Until it has, reading its environment would wait for it,
        and it waits for this server.
        """
        if self.name in UNDER_EXEC_LOCK:
            return None
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/environ", "rb") as file:
            found = re.search(rb"(?:^|\0)MUSTER_RANK=(\d+)", file.read())
            return found[1].decode() if found else None
        return None


@dataclass
class Server:
    """The mounted filesystem."""

    directory: str
    mount: str
    cache_seconds: int = 0  # for which the kernel may trust names and attributes; then it also caches contents
    faults: list[Fault] = field(default_factory=list)
    held: list[Request] = field(default_factory=list)
    log: list[tuple[str, str, float, str, int, int]] = field(default_factory=list)
    logging: bool = False
    _nodes: dict[int, Node] = field(default_factory=dict)
    _ids: dict[tuple[int, int], int] = field(default_factory=dict)  # by device and inode
    _listings: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    _remembered: dict[tuple[object, ...], tuple[float, int, bytes]] = field(default_factory=dict)
    _programs: dict[int, str] = field(default_factory=dict)  # by pid
    _next: int = ROOT + 1

    def __post_init__(self) -> None:
        os.umask(0)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        root = os.open(self.directory, os.O_PATH)
        self._nodes[ROOT] = Node(root, "", 1)
        self._ids[_identity(os.fstat(root))] = ROOT
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        libc = ctypes.CDLL(None, use_errno=True)
        source, kind = b"faulty", b"fuse.faulty"
        if libc.mount(source, self.mount.encode(), kind, ctypes.c_ulong(0), options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.mount)

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until standard input ends."""
        poll = select.poll()
        poll.register(self._fuse, select.POLLIN)
        poll.register(0, select.POLLIN | select.POLLHUP)
        commands = b""
        while True:
            ready = dict(poll.poll(20 if self.held else None))
            if 0 in ready:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *lines, commands = (commands + data).split(b"\n")
                for line in lines:
                    sys.stdout.write(json.dumps(self._command(**json.loads(line))) + "\n")
                    sys.stdout.flush()
            if self._fuse in ready and not self._read():
                return
            self._release_held()

    def _command(self, do: str, **arguments: Any) -> Any:
        if do == "fault":
            self.faults.append(Fault(**arguments))
        elif do == "clear":
            self.faults.clear()
            self._remembered.clear()
            for request in self.held:
                request.held_by = None
        elif do == "record":
            self.logging, self.log = True, []
        elif do == "operations":
            return self.log
        elif do == "hits":
            return [fault.hits for fault in self.faults]
        return None

    def _read(self) -> bool:
        try:
            data = os.read(self._fuse, MAX_WRITE_BYTES + 4096)
        except OSError as error:
            return error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN)  # ENODEV: unmounted
        _, opcode, unique, node, uid, gid, pid, _ = IN_HEADER.unpack_from(data)
        self._receive(Request(opcode, unique, node, uid, gid, pid, data[IN_HEADER.size :]))
        return True

    def _receive(self, request: Request) -> None:
        if request.opcode == FORGET:
            self._forget(request.node, struct.unpack_from("=Q", request.body)[0])
        elif request.opcode == BATCH_FORGET:
            for index in range(struct.unpack_from("=I", request.body)[0]):
                self._forget(*struct.unpack_from("=QQ", request.body, 8 + 16 * index))
        elif request.opcode == INIT:
            flags = ATOMIC_TRUNCATE | BIG_WRITES | PARALLEL_DIROPS | MAX_PAGES
            facts = INIT_OUT.pack(7, 31, 0, flags, 64, 48, MAX_WRITE_BYTES, 1, MAX_WRITE_BYTES // 4096, 0)
            self._reply(request, 0, facts)
        elif request.opcode not in (INTERRUPT, DESTROY):  # as a mount with `hard`: only an answer ends a call
            request.path = self._path(request)
            if self.logging:
                at, program, process = time.monotonic(), self._program(request), request.process()
                self.log.append((request.name, request.path, at, program, request.pid, process))
            self._handle(request)

    def _program(self, request: Request) -> str:
        """The command line of the process that asks."""
        if request.pid not in self._programs and request.name not in UNDER_EXEC_LOCK:
            with contextlib.suppress(OSError), open(f"/proc/{request.pid}/cmdline", "rb") as file:
                rank = request.rank()
                words = file.read().decode(errors="replace").split("\0")
                self._programs[request.pid] = " ".join([*([f"rank {rank}:"] if rank else []), *words])[:200]
        return self._programs.get(request.pid, "")

    def _handle(self, request: Request) -> None:
        """Answer the request, unless a fault holds it back."""
        for fault in self.faults:
            if fault.strikes(request):
                if fault.kind == "hang":
                    request.held_by = fault
                    self.held.append(request)
                elif fault.kind == "stale":
                    self._answer_stale(request, fault)
                else:
                    self._reply(request, errno.ENOSPC if fault.kind == "full" else getattr(errno, fault.kind), b"")
                return
        self._answer(request)

    def _release_held(self) -> None:
        for request in [one for one in self.held if one.held_by is None or not one.held_by.holds()]:
            self.held.remove(request)
            self._answer(request)

    def _answer(self, request: Request) -> None:
        if self._remembered and request.name not in ("lookup", "getattr", "open", "read", "opendir", "readdir"):
            self._forget_stale(request)
        self._reply(request, *self._execute(request))

    def _answer_stale(self, request: Request, fault: Fault) -> None:
        """Answer as a client that trusts its cache: absent names and attributes stay as they were for a while."""
        if request.name not in ("lookup", "getattr"):  # contents and listings are current
            self._answer(request)
            return
        code, data = self._execute(request)
        key, now = (request.rank(), request.name, request.path), time.monotonic()
        at, old_code, old_data = self._remembered.get(key, (-1e9, code, data))
        if now - at >= fault.seconds:
            self._remembered[key] = now, code, data
            old_code, old_data = code, data
        fresh_node = code == 0 and old_code == 0 and request.name == "lookup" and data[:8] != old_data[:8]
        self._reply(request, *((code, data) if fresh_node else (old_code, old_data)))  # a forgotten node is no answer

    def _forget_stale(self, request: Request) -> None:
        """Drop what a client remembers about a file that it has changed itself."""
        for key in [key for key in self._remembered if key[0] == request.rank() and key[2] in request.names()]:
            del self._remembered[key]

    def _reply(self, request: Request, code: int, data: bytes) -> None:
        data = b"" if code else data
        with contextlib.suppress(OSError):  # the caller was killed
            os.write(self._fuse, OUT_HEADER.pack(OUT_HEADER.size + len(data), -code, request.unique) + data)

    def _execute(self, request: Request) -> tuple[int, bytes]:
        handler: Callable[[Request], bytes] | None = getattr(self, f"_do_{request.name}", None)
        if handler is None:
            return errno.ENOSYS, b""
        try:
            return 0, handler(request)
        except OSError as error:
            return error.errno or errno.EIO, b""
        except KeyError:
            return errno.ESTALE, b""

    @property
    def _open_flags(self) -> int:
        return 0 if self.cache_seconds else DIRECT_IO

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _path(self, request: Request) -> str:
        node = self._nodes.get(request.node)
        base = node.path if node else "?"
        skip = {8: 16, 9: 8, 35: 16, 13: 8}.get(request.opcode, 0)
        if request.opcode in (1, 6, 8, 9, 10, 11, 13, 35):
            return _join(base, request.body[skip:].split(b"\0")[0].decode(errors="replace"))
        if request.opcode in (12, 45):
            new = self._nodes.get(struct.unpack_from("=Q", request.body)[0])
            names = request.body[8 if request.opcode == 12 else 16 :].split(b"\0")
            return _join(new.path if new else "?", names[1].decode(errors="replace"))
        return base

    def _child(self, request: Request, name: bytes) -> bytes:
        """Return the entry of a name: the node, which the kernel now knows once more, and its attributes."""
        parent = self._nodes[request.node]
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent.fd)
        found, path = os.fstat(fd), _join(parent.path, name.decode(errors="replace"))
        number = self._ids.get(_identity(found))
        if number is None:
            number, self._next = self._next, self._next + 1
            self._ids[_identity(found)], self._nodes[number] = number, Node(fd, path)
        else:
            os.close(fd)
        node = self._nodes[number]
        node.path, node.lookups = path, node.lookups + 1
        return ENTRY_OUT.pack(number, 0, self.cache_seconds, self.cache_seconds, 0, 0) + _attributes(found)

    def _forget(self, number: int, lookups: int) -> None:
        node = self._nodes.get(number)
        if node is not None and number != ROOT:
            node.lookups -= lookups
            if node.lookups <= 0:
                del self._nodes[number]
                self._ids.pop(_identity(os.fstat(node.fd)), None)
                os.close(node.fd)

    def _give(self, request: Request, name: bytes) -> None:
        parent = self._nodes[request.node]
        os.chown(name, request.uid, request.gid, dir_fd=parent.fd, follow_symlinks=False)

    def _through(self, request: Request) -> str:
        """A path that leads to the node itself, whatever its name is now."""
        return f"/proc/self/fd/{self._nodes[request.node].fd}"

    # -- operations -----------------------------------------------------------------------------------------------

    def _do_lookup(self, request: Request) -> bytes:
        return self._child(request, request.body.split(b"\0")[0])

    def _do_getattr(self, request: Request) -> bytes:
        return ATTR_OUT.pack(self.cache_seconds, 0, 0) + _attributes(os.fstat(self._nodes[request.node].fd))

    def _do_setattr(self, request: Request) -> bytes:
        fields = SETATTR_IN.unpack_from(request.body)
        valid, size, mode, uid, gid = fields[0], fields[3], fields[11], fields[13], fields[14]
        at, found = self._through(request), os.fstat(self._nodes[request.node].fd)
        if valid & SET_MODE:
            os.chmod(at, stat.S_IMODE(mode))
        if valid & (SET_UID | SET_GID):
            os.chown(at, uid if valid & SET_UID else -1, gid if valid & SET_GID else -1)
        if valid & SET_SIZE:
            os.truncate(at, size)
        if valid & (SET_ATIME | SET_MTIME):
            now = time.time_ns()
            accessed, modified = fields[5] * 10**9 + fields[8], fields[6] * 10**9 + fields[9]
            accessed = now if valid & SET_ATIME_NOW else accessed if valid & SET_ATIME else found.st_atime_ns
            modified = now if valid & SET_MTIME_NOW else modified if valid & SET_MTIME else found.st_mtime_ns
            os.utime(at, ns=(accessed, modified))
        return self._do_getattr(request)

    def _do_readlink(self, request: Request) -> bytes:
        return os.fsencode(os.readlink("", dir_fd=self._nodes[request.node].fd))

    def _do_symlink(self, request: Request) -> bytes:
        name, target = request.body.split(b"\0")[:2]
        os.symlink(target, name, dir_fd=self._nodes[request.node].fd)
        self._give(request, name)
        return self._child(request, name)

    def _do_mknod(self, request: Request) -> bytes:
        mode, device = struct.unpack_from("=II", request.body)
        name = request.body[16:].split(b"\0")[0]
        os.mknod(name, mode, device, dir_fd=self._nodes[request.node].fd)
        self._give(request, name)
        return self._child(request, name)

    def _do_mkdir(self, request: Request) -> bytes:
        name = request.body[8:].split(b"\0")[0]
        os.mkdir(name, struct.unpack_from("=I", request.body)[0], dir_fd=self._nodes[request.node].fd)
        self._give(request, name)
        return self._child(request, name)

    def _do_unlink(self, request: Request) -> bytes:
        os.unlink(request.body.split(b"\0")[0], dir_fd=self._nodes[request.node].fd)
        return b""

    def _do_rmdir(self, request: Request) -> bytes:
        os.rmdir(request.body.split(b"\0")[0], dir_fd=self._nodes[request.node].fd)
        return b""

    def _do_rename(self, request: Request) -> bytes:
        if request.opcode == 45 and struct.unpack_from("=QI", request.body)[1]:
            raise OSError(errno.EINVAL, "no flags")
        old, new = request.body[8 if request.opcode == 12 else 16 :].split(b"\0")[:2]
        target = self._nodes[struct.unpack_from("=Q", request.body)[0]]
        os.rename(old, new, src_dir_fd=self._nodes[request.node].fd, dst_dir_fd=target.fd)
        with contextlib.suppress(OSError, KeyError):
            number = self._ids[_identity(os.stat(new, dir_fd=target.fd, follow_symlinks=False))]
            before, after = self._nodes[number].path, _join(target.path, new.decode(errors="replace"))
            for node in self._nodes.values():
                if node.path == before or node.path.startswith(before + "/"):
                    node.path = after + node.path[len(before) :]
        return b""

    def _do_link(self, request: Request) -> bytes:
        source, name = self._nodes[struct.unpack_from("=Q", request.body)[0]], request.body[8:].split(b"\0")[0]
        os.link(f"/proc/self/fd/{source.fd}", name, dst_dir_fd=self._nodes[request.node].fd, follow_symlinks=True)
        return self._child(request, name)

    def _do_open(self, request: Request) -> bytes:
        flags = struct.unpack_from("=I", request.body)[0] & ~(os.O_NOFOLLOW | os.O_DIRECT)
        return OPEN_OUT.pack(os.open(self._through(request), flags), self._open_flags, 0)

    def _do_create(self, request: Request) -> bytes:
        flags, mode = struct.unpack_from("=II", request.body)
        name, parent = request.body[16:].split(b"\0")[0], self._nodes[request.node]
        handle = os.open(name, flags & ~os.O_DIRECT | os.O_CREAT, stat.S_IMODE(mode), dir_fd=parent.fd)
        os.fchown(handle, request.uid, request.gid)
        return self._child(request, name) + OPEN_OUT.pack(handle, self._open_flags, 0)

    def _do_read(self, request: Request) -> bytes:
        handle, offset, size = READ_IN.unpack_from(request.body)[:3]
        return os.pread(handle, size, offset)

    def _do_write(self, request: Request) -> bytes:
        handle, offset, size = READ_IN.unpack_from(request.body)[:3]
        data = request.body[READ_IN.size : READ_IN.size + size]
        return struct.pack("=II", os.pwrite(handle, data, offset), 0)  # to the end if opened with O_APPEND

    def _do_statfs(self, request: Request) -> bytes:
        found = os.statvfs(self.directory)
        counts = found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree
        return STATFS_OUT.pack(*counts, found.f_bsize, found.f_namemax, found.f_frsize, 0)

    def _do_flush(self, request: Request) -> bytes:
        return b""

    def _do_fsync(self, request: Request) -> bytes:
        return b""

    _do_fsyncdir = _do_fsync

    def _do_release(self, request: Request) -> bytes:
        os.close(struct.unpack_from("=Q", request.body)[0])
        return b""

    def _do_opendir(self, request: Request) -> bytes:
        names = [(".", 0, stat.S_IFDIR), ("..", 0, stat.S_IFDIR)]
        with os.scandir(self._through(request)) as entries:
            for entry in entries:
                kind = stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG
                names.append((entry.name, entry.inode(), stat.S_IFLNK if entry.is_symlink() else kind))
        handle = max(self._listings, default=0) + 1
        self._listings[handle] = names
        return OPEN_OUT.pack(handle, 0, 0)

    def _do_readdir(self, request: Request) -> bytes:
        handle, offset, size = READ_IN.unpack_from(request.body)[:3]
        out = b""
        for index, (name, inode, kind) in enumerate(self._listings[handle][offset:], offset):
            encoded = os.fsencode(name)
            entry = DIRENT.pack(inode or 1, index + 1, len(encoded), kind >> 12) + encoded
            entry += bytes(-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return out

    def _do_releasedir(self, request: Request) -> bytes:
        self._listings.pop(struct.unpack_from("=Q", request.body)[0], None)
        return b""


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _attributes(found: os.stat_result) -> bytes:
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    seconds, rests = [time // 10**9 for time in times], [time % 10**9 for time in times]
    owner = found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_rdev, found.st_blksize, 0
    return ATTR.pack(found.st_ino, found.st_size, found.st_blocks, *seconds, *rests, *owner)


def main() -> None:
    server = Server(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.stdout.write('"ready"\n')
    sys.stdout.flush()
    try:
        server.run()
    finally:
        ctypes.CDLL(None).umount2(server.mount.encode(), MNT_DETACH)


if __name__ == "__main__":
    main()
