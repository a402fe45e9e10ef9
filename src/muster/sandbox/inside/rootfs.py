"""A root filesystem of a worker's own: the system and the interpreter read-only, a scratch of limited size, no more.

/usr /opt /bin /lib ...    the host's, read-only, no set-user-id      /etc      a few files, no secrets
the interpreter's places   the same                                   /proc     of this worker's processes alone
/sandbox /tmp /dev/shm     the scratch                                /dev      null, zero, random ..., pts
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from muster.sandbox.inside.kernel import (
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
    pivot_root,
    unmount,
)

HOME, TEMPORARY, SHARED_MEMORY = "/sandbox", "/tmp", "/dev/shm"
SYSTEM = ("/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
ETC = (
    "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "mime.types", "fonts",
    "ssl/certs", "ssl/openssl.cnf", "pki/tls/openssl.cnf",
    "pki/tls/certs", "pki/ca-trust/extracted", "ca-certificates", "protocols", "services", "magic", "java-17-openjdk",
    "java-11-openjdk", "ImageMagick-6", "texmf",
)  # fmt: skip
ETC_OF_NETWORK = ("resolv.conf", "hosts", "nsswitch.conf", "gai.conf", "host.conf")
DEVICES = ("null", "zero", "full", "random", "urandom")
INODES_PER_MB = 256


@dataclass(frozen=True)
class Root:
    """What a worker's root filesystem is made of."""

    place: str  # an empty directory, to build it on
    read_only: Sequence[str]
    scratch_mb: int
    workspace: str | None  # a directory whose `home` and `tmp` are used instead of fresh ones
    network: bool
    owner: tuple[int, int]


def build(root: Root) -> bool:
    """Build it, enter it, leave the old one; whether there is a /proc. The caller is alone in its mount namespace."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", root.place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    new = root.place
    _system(new)
    _etc(new, root)
    _devices(new)
    _scratch(new, root)
    for path in root.read_only:
        _bind(path, new + path)
        make_read_only(new + path)
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
            _bind(path, new + path)
            make_read_only(new + path)


def _etc(new: str, root: Root) -> None:
    for name in ETC + (ETC_OF_NETWORK if root.network else ()):
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
        _write(f"{new}/etc/hosts", "127.0.0.1 localhost sandbox\n")


def _devices(new: str) -> None:
    os.makedirs(new + "/dev/pts")
    for name in DEVICES:
        _write(f"{new}/dev/{name}", "")
        mount(f"/dev/{name}", f"{new}/dev/{name}", "", MS_BIND)
    for name, target in (("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1"), ("stderr", "self/fd/2")):
        os.symlink("/proc/" + target, f"{new}/dev/{name}")
    with suppress(OSError):  # without it there are no terminals for programs that want one
        mount("devpts", new + "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
        os.symlink("pts/ptmx", new + "/dev/ptmx")


def _scratch(new: str, root: Root) -> None:
    """One filesystem of limited size behind all places that can be written to."""
    behind = new + "/.scratch"
    os.mkdir(behind)
    limits = f"mode=755,size={root.scratch_mb}m,nr_inodes={max(1024, root.scratch_mb * INODES_PER_MB)}"
    mount("tmpfs", behind, "tmpfs", MS_NOSUID | MS_NODEV, limits)
    for place, name in ((HOME, "home"), (TEMPORARY, "tmp"), (SHARED_MEMORY, "shm")):
        source = f"{behind}/{name}"
        os.mkdir(source)
        os.chown(source, *root.owner)
        if root.workspace and name != "shm":
            source = f"{root.workspace}/{name}"
        os.makedirs(new + place, exist_ok=True)
        mount(source, new + place, "", MS_BIND)
        mount("none", new + place, "", MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV)
    unmount(behind)
    os.rmdir(behind)


def _proc(new: str) -> bool:
    os.mkdir(new + "/proc")
    try:
        mount("proc", new + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        return False  # in a container whose own /proc is partly hidden, the kernel gives no other
    return True


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


def empty(directory: str, keep: Sequence[str] = (), limit: int = 20000) -> bool:
    """Remove what is in a directory; False when something is left, or there is more than is worth removing.

    Called when nobody who could play with links is alive.
    """
    if not os.listdir(directory):
        return True
    for entry in os.scandir(directory):
        limit -= 1
        if limit < 0:
            return False
        if entry.name not in keep:
            _remove(entry)
    return all(name in keep for name in os.listdir(directory))


def _remove(entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            return
        shutil.rmtree(entry.path, ignore_errors=True)
        if os.path.lexists(entry.path):
            _open_up(entry.path)
            shutil.rmtree(entry.path, ignore_errors=True)


def _open_up(directory: str) -> None:
    """A directory that its owner may not enter is its owner's all the same."""
    os.chmod(directory, 0o700)
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            _open_up(entry.path)
