"""Measure and remove file trees that an untrusted program controls, by directory descriptors.

No path is resolved twice and no symbolic link is followed, so a program that swaps names meanwhile cannot redirect the
walk. One descriptor is open at a time and nothing recurses, so any depth can be handled.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from contextlib import suppress

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
O_PATH = 0o10000000
OWN_FDS = "/proc/self/fd"
REMOVAL_PASSES = 3  # a process that is being killed may still add a file
DIRECTORY_BYTES = 4096  # for those that some filesystems report as empty
BLOCK_BYTES = 512  # the unit of st_blocks on Linux


class DirectoryMoved(OSError):
    """A directory was moved while it was read."""


class Cursor:
    """A position in a tree: `fd` is the directory, `enter` and `leave` move it down and up."""

    def __init__(self, top: int) -> None:
        self.fd = os.dup(top)
        self._above: list[tuple[str, tuple[int, int]]] = []  # name and identity of the parent of each directory entered

    def enter(self, name: str, *, unlock: bool) -> None:
        """Go to a subdirectory. With `unlock`, add missing permissions for its owner."""
        parent = _identity(self.fd)
        child = _open(self.fd, name, unlock)
        self._move(child)
        self._above.append((name, parent))

    def leave(self) -> str:
        """Go to the parent; return the name of the directory left. Raises DirectoryMoved."""
        name, parent = self._above.pop()
        self._move(os.open("..", OPEN_DIRECTORY, dir_fd=self.fd))
        if _identity(self.fd) != parent:
            raise DirectoryMoved(f"{name} was moved while it was read")
        return name

    def close(self) -> None:
        os.close(self.fd)

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def empty_directory(
    directory: int, keep: Collection[str] = (), max_entries: float = math.inf, max_levels: float = math.inf
) -> bool:
    """Remove the contents of a directory except the names in `keep`; False if something is left.

    It gives up after `max_entries` entries or below `max_levels` levels of directories.
    """
    if not _others(directory, keep):
        return True
    cursor, seen = Cursor(directory), 0
    pending = [[name for name in os.listdir(directory) if name not in keep]]  # names to remove, for each level
    try:
        while pending:
            if pending[-1]:
                name = pending[-1].pop()
                seen += 1
                if seen > max_entries or len(pending) > max_levels:
                    return False
                if _unlink(cursor.fd, name):
                    continue
                with suppress(OSError):
                    cursor.enter(name, unlock=True)
                    pending.append([])
                    pending[-1] = os.listdir(cursor.fd)
            else:
                pending.pop()
                if pending:
                    name = cursor.leave()
                    with suppress(OSError):
                        os.rmdir(name, dir_fd=cursor.fd)
    except OSError:
        return False
    finally:
        cursor.close()
    return not _others(directory, keep)


def remove_tree(path: str) -> bool:
    """Remove a tree whatever its permissions; False if it is left. Its parent must not be writable by the program."""
    parent, name = os.path.split(path)
    try:
        place = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return any(_remove_once(place, name) for _ in range(REMOVAL_PASSES))
    finally:
        os.close(place)


def used_bytes(directory: int, skip: Collection[str], max_entries: int) -> int | None:
    """Return the bytes that a tree occupies, without the names in `skip` at its top; None above `max_entries`.

    A directory counts with DIRECTORY_BYTES at least. Directories that are moved meanwhile may be missed.
    """
    cursor, total, seen = Cursor(directory), 0, 0
    pending: list[list[str]] = []
    try:
        while True:
            below = []
            with suppress(OSError), os.scandir(cursor.fd) as entries:
                for entry in entries:
                    if not pending and entry.name in skip:
                        continue
                    seen += 1
                    if seen > max_entries:
                        return None
                    with suppress(OSError):
                        used = entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
                        if entry.is_dir(follow_symlinks=False):
                            below.append(entry.name)
                            used = max(used, DIRECTORY_BYTES)
                        total += used
            pending.append(below)
            if not _enter_next(cursor, pending):
                return total
    except OSError:
        return total
    finally:
        cursor.close()


def _enter_next(cursor: Cursor, pending: list[list[str]]) -> bool:
    """Move to the next pending directory; False if there is none."""
    while pending:
        while pending[-1]:
            with suppress(OSError):
                cursor.enter(pending[-1].pop(), unlock=False)
                return True
        pending.pop()
        if pending:
            cursor.leave()
    return False


def _remove_once(place: int, name: str) -> bool:
    try:
        if _unlink(place, name):
            return True
        fd = _open(place, name, unlock=True)
        try:
            empty_directory(fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=place)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _unlink(directory: int, name: str) -> bool:
    """Unlink a file or a link; False for a directory, or if it cannot be unlinked."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _others(directory: int, keep: Collection[str]) -> bool:
    names = os.listdir(directory)
    return bool(names) and any(name not in keep for name in names)


def _open(parent: int, name: str, unlock: bool) -> int:
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except PermissionError:
        if not unlock:
            raise
        _unlock(parent, name)
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    if unlock and os.fstat(fd).st_mode & 0o700 != 0o700:
        with suppress(OSError):
            os.fchmod(fd, 0o700)
    return fd


def _unlock(parent: int, name: str) -> None:
    """Make a directory accessible to its owner, by a descriptor: its name may refer to another file by now."""
    fd = os.open(name, O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.path.isdir(OWN_FDS):
            os.chmod(f"{OWN_FDS}/{fd}", 0o700)
        else:  # in a sandbox without /proc, when no program of the worker lives
            os.chmod(name, 0o700, dir_fd=parent)
    finally:
        os.close(fd)


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
