"""Trees of files that a foreign program controls, or did: read and removed by directory descriptors.

No path is followed twice and no symbolic link is followed at all, so a program that swaps names while its tree is read
cannot lead us elsewhere. One descriptor is open at a time and nothing recurses, so any depth can be handled.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from contextlib import suppress

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
O_PATH = 0o10000000
OWN_FDS = "/proc/self/fd"
PASSES = 3  # over a tree that is removed: a process that is being killed may still have added a file
BLOCK_BYTES = 512  # the unit of st_blocks on Linux


class Moved(OSError):
    """A directory was moved while we were in it."""


class Cursor:
    """A position in a tree: `fd` is the directory, `enter` and `leave` move it down and up."""

    def __init__(self, top: int) -> None:
        self.fd = os.dup(top)
        self._above: list[tuple[str, tuple[int, int]]] = []  # the name of each directory entered, and its parent

    def enter(self, name: str, *, unlock: bool) -> None:
        """Go to a subdirectory. `unlock`: give its owner, us, the rights that it lacks."""
        parent = _identity(self.fd)
        child = _open(self.fd, name, unlock)
        self._move(child)
        self._above.append((name, parent))

    def leave(self) -> str:
        """Go back; returns the name of the directory that we were in."""
        name, parent = self._above.pop()
        self._move(os.open("..", OPEN_DIRECTORY, dir_fd=self.fd))
        if _identity(self.fd) != parent:
            raise Moved(f"{name} was moved while it was read")
        return name

    def close(self) -> None:
        os.close(self.fd)

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def empty_directory(
    directory: int, keep: Collection[str] = (), most_entries: float = math.inf, most_levels: float = math.inf
) -> bool:
    """Remove what is in a directory, but for the names in `keep`; False when something is left.

    It gives up where there are more entries, or more levels of directories, than that.
    """
    if not _others(directory, keep):
        return True
    cursor, seen = Cursor(directory), 0
    pending = [[name for name in os.listdir(directory) if name not in keep]]  # names to be removed, for each level
    try:
        while pending:
            if pending[-1]:
                name = pending[-1].pop()
                seen += 1
                if seen > most_entries or len(pending) > most_levels:
                    return False
                if _is_unlinked(cursor.fd, name):
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
    """Remove a tree, however it was left; whether it is gone. Programs must not be able to write to its parent."""
    parent, name = os.path.split(path)
    try:
        place = os.open(parent or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return any(_is_removed(place, name) for _ in range(PASSES))
    finally:
        os.close(place)


def used_bytes(directory: int, skip: Collection[str], most_entries: int) -> int | None:
    """Bytes that a tree takes, without the names in `skip` at its top; None when it has more entries than that.

    What is moved while we look is counted the next time.
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
                    if seen > most_entries:
                        return None
                    with suppress(OSError):
                        total += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
                        if entry.is_dir(follow_symlinks=False):
                            below.append(entry.name)
            pending.append(below)
            if not _go_on(cursor, pending):
                return total
    except OSError:
        return total
    finally:
        cursor.close()


def _go_on(cursor: Cursor, pending: list[list[str]]) -> bool:
    """Move to the next directory whose name is pending; False when there is none."""
    while pending:
        while pending[-1]:
            with suppress(OSError):
                cursor.enter(pending[-1].pop(), unlock=False)
                return True
        pending.pop()
        if pending:
            cursor.leave()
    return False


def _is_removed(place: int, name: str) -> bool:
    try:
        if _is_unlinked(place, name):
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


def _is_unlinked(directory: int, name: str) -> bool:
    """Unlink what is no directory: also a link to one. False for a directory, or what cannot be unlinked."""
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
    """Make a directory readable for its owner. Through a descriptor of it: its name may mean another file by now."""
    fd = os.open(name, O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.path.isdir(OWN_FDS):
            os.chmod(f"{OWN_FDS}/{fd}", 0o700)
        else:  # in a sandbox that could not have a /proc, by a worker none of whose programs live any more
            os.chmod(name, 0o700, dir_fd=parent)
    finally:
        os.close(fd)


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
