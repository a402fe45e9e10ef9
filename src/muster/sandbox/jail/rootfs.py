"""The root filesystem of a worker: the system and the interpreter read-only, and a scratch of limited size.

/usr /opt /bin /lib ...    the host's, read-only, as overlays, no suid /etc      a few files, no secrets
the interpreter's paths    the same                                   /proc     only this worker's processes
/sandbox /tmp /dev/shm /mnt    the scratch                            /dev      null, zero, random ..., pts

A read-only path below one of the three scratch directories, such as /tmp/env/bin, is mounted there too. Its directories
are on a read-only filesystem that is created here and mounted as a whole on /tmp/env: a program can neither write to a
mount point nor rename or remove it. Only that one mount point, found without following links, is created in the
scratch: the programs of a workspace control its contents.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from muster.process.file_trees import O_PATH
from muster.sandbox.jail.kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    make_read_only,
    mount,
    mounts_at_or_below,
    pivot_root,
    unmount,
)

HOME, TEMPORARY, SHARED_MEMORY = "/sandbox", "/tmp", "/dev/shm"
SCRATCH = (HOME, TEMPORARY, SHARED_MEMORY)
MOUNTS = "/mnt"  # scratch too, unless a read-only path is there: programs made for SandboxFusion write to it
SYSTEM = ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "timezone",
    "mime.types",
    "fonts",
    "ssl/certs",
    "ssl/openssl.cnf",
    "pki/tls/openssl.cnf",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "ca-certificates",
    "protocols",
    "services",
    "magic",
    "matplotlibrc",
    "java-17-openjdk",
    "java-11-openjdk",
    "dmd.conf",
    "ldc2.conf",
    "mono",
    "php",
    "racket",
    "R",
    "ImageMagick-6",
    "texmf",
)
NETWORK_ETC = ("resolv.conf", "hosts", "nsswitch.conf", "gai.conf", "host.conf")
EMPTY = "/proc"  # an empty directory, which overlays need, until /proc is mounted there
DEVICES = ("null", "zero", "full", "random", "urandom")
INODES_PER_MB = 256


@dataclass(frozen=True)
class RootSpec:
    """The parameters of a worker's root filesystem."""

    directory: str  # an empty mount point
    read_only: Sequence[str]
    scratch_mb: int
    workspace: str | None  # a directory whose `home` and `tmp` are used instead of fresh ones
    network: bool
    owner: tuple[int, int]


def build(root: RootSpec) -> bool:
    """Build the filesystem and enter it; return whether it has a /proc. The caller has a mount namespace for itself."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", root.directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    new = root.directory
    os.mkdir(new + EMPTY)
    _system(new)
    _etc(new, root)
    _devices(new)
    _scratch(new, root)
    _read_only(new, root)
    proc = _proc(new)
    os.mkdir(new + "/.old")
    pivot_root(new, new + "/.old")
    os.chdir("/")
    unmount("/.old")
    os.rmdir("/.old")
    mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    return proc


def _system(new: str) -> None:
    for path in SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), new + path)
        elif os.path.isdir(path):
            _show(path, new + path, new + EMPTY)


def _etc(new: str, root: RootSpec) -> None:
    for name in ETC + (NETWORK_ETC if root.network else ()):
        path = "/etc/" + name
        if os.path.islink(path) and not os.path.isdir(path):
            path = os.path.realpath(path)
        if os.path.exists(path):
            _bind(path, f"{new}/etc/{name}")
            make_read_only(f"{new}/etc/{name}")
    os.makedirs(new + "/etc", exist_ok=True)
    user, group = root.owner
    _write(f"{new}/etc/passwd", f"root:x:0:0::/:/bin/false\nsandbox:x:{user}:{group}::{HOME}:/bin/bash\n")
    _write(f"{new}/etc/group", f"root:x:0:\nsandbox:x:{group}:\n")
    if not root.network:
        _write(f"{new}/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")
        _write(f"{new}/etc/nsswitch.conf", "hosts: files\n")


def _devices(new: str) -> None:
    os.makedirs(new + "/dev/pts")
    for name in DEVICES:
        _write(f"{new}/dev/{name}", "")
        mount(f"/dev/{name}", f"{new}/dev/{name}", "", MS_BIND)
    for name, target in (("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1"), ("stderr", "self/fd/2")):
        os.symlink("/proc/" + target, f"{new}/dev/{name}")
    with suppress(OSError):  # without it programs have no terminals
        mount("devpts", new + "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
        os.symlink("pts/ptmx", new + "/dev/ptmx")


def _scratch(new: str, root: RootSpec) -> None:
    """Mount one filesystem of limited size on all writable directories."""
    behind = new + "/.scratch"
    os.mkdir(behind)
    limits = f"mode=755,size={root.scratch_mb}m,nr_inodes={inodes_of(root.scratch_mb)}"
    mount("tmpfs", behind, "tmpfs", MS_NOSUID | MS_NODEV, limits)
    private = [(path, path.rpartition("/")[2]) for path in private_scratch(root.read_only)]
    for path, name in ((HOME, "home"), (TEMPORARY, "tmp"), *private):
        source = f"{behind}/{name}"
        os.mkdir(source)
        os.chown(source, *root.owner)
        if root.workspace and path in (HOME, TEMPORARY):
            source = f"{root.workspace}/{name}"
        os.makedirs(new + path, exist_ok=True)
        mount(source, new + path, "", MS_BIND)
        mount("none", new + path, "", MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV)
    unmount(behind)
    os.rmdir(behind)


def inodes_of(scratch_mb: int) -> int:
    """Return how many files and directories a scratch of this size may have."""
    return max(1024, scratch_mb * INODES_PER_MB)


def private_scratch(read_only: Iterable[str]) -> list[str]:
    """Return the scratch directories that a worker never shares, not even in a workspace.

    >>> private_scratch(["/srv/data"]), private_scratch(["/mnt/env"])
    (['/dev/shm', '/mnt'], ['/dev/shm'])
    """
    is_taken = any(path == MOUNTS or path.startswith(MOUNTS + "/") for path in read_only)
    return [SHARED_MEMORY] if is_taken else [SHARED_MEMORY, MOUNTS]


def shown_in(directory: str, read_only: Iterable[str]) -> list[str]:
    """Return the names in a scratch directory below which read-only paths are mounted.

    >>> shown_in("/tmp", ["/tmp/env/lib", "/tmp/env/bin", "/tmpfs/x", "/srv/data"])
    ['env']
    """
    below = [path[len(directory) + 1 :] for path in read_only if path.startswith(directory + "/")]
    return list(dict.fromkeys(path.partition("/")[0] for path in below))


def _read_only(new: str, root: RootSpec) -> None:
    inside = [path for path in root.read_only if any(path.startswith(scratch + "/") for scratch in SCRATCH)]
    for path in root.read_only:
        if path not in inside:
            _show(path, new + path, new + EMPTY)
    if inside:
        _mount_in_scratch(new, inside)


def _mount_in_scratch(new: str, paths: Sequence[str]) -> None:
    behind = new + "/.shown"
    os.mkdir(behind)
    mount("tmpfs", behind, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for path in paths:
        _show(path, behind + path, new + EMPTY)
    make_read_only(behind)  # with everything below; copies of these mounts are read-only too
    for scratch in SCRATCH:
        for name in shown_in(scratch, paths):
            source = f"{behind}{scratch}/{name}"
            target = _mount_point(new + scratch, name, os.path.isdir(source))
            try:
                mount(source, f"/proc/self/fd/{target}", "", MS_BIND | MS_REC)
            finally:
                os.close(target)
    unmount(behind)
    os.rmdir(behind)


def _mount_point(scratch: str, name: str, is_directory: bool) -> int:
    """Return a descriptor of an entry of the scratch, created if necessary. Programs may write to it concurrently."""
    directory = os.open(scratch, O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(FileExistsError):
            if is_directory:
                os.mkdir(name, 0o755, dir_fd=directory)
            else:
                new_file = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(name, new_file, 0o644, dir_fd=directory))
        found = os.open(name, O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
    mode = os.fstat(found).st_mode
    if stat.S_ISDIR(mode) != is_directory or stat.S_ISLNK(mode):
        os.close(found)
        kind = "directory" if is_directory else "file"
        raise OSError(f"a program left {name} in the workspace, where a read-only {kind} must be mounted; delete it")
    return found


def _proc(new: str) -> bool:
    try:
        mount("proc", new + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        return False  # the kernel refuses it in a container whose own /proc is partly hidden
    return True


def _show(source: str, target: str, empty: str) -> None:
    """Show a path of the host read-only. Sockets, pipes and locks in it do not lead to processes of the host.

    A read-only bind mount still lets programs connect to sockets and write to pipes. In an overlay these are other
    objects, as are locks and watches of files. Where the kernel refuses the overlay, and for paths that contain other
    mounts, which an overlay would not show, it is a bind mount. `empty` is an empty directory: an overlay needs two.
    """
    special = any(character in source for character in ",:\\")
    if os.path.isdir(source) and not special and not _has_mounts_below(source):
        os.makedirs(target, exist_ok=True)
        with suppress(OSError):
            mount("overlay", target, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, f"lowerdir={source}:{empty}")
            return
    _bind(source, target)
    make_read_only(target)


def _has_mounts_below(path: str) -> bool:
    return any(place != path for place in mounts_at_or_below(path))


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        _write(target, "")
    mount(source, target, "", MS_BIND | MS_REC)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
