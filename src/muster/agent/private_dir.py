"""Directories on the node's disk that only this user can access."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat

CREATE_TRIES = 100  # each fails only if another process removes the parent at the same moment

_replaced: dict[str, str] = {}  # occupied directories of this process, and what it uses instead


def make_private(path: str) -> None:
    """Create the directory. PermissionError if it exists with other access: in /tmp another user may have made it."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    info = os.lstat(path)
    if not _is_own_directory(info) or info.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory that only this user can access: remove it")


def make_private_child(path: str) -> None:
    """Create a directory, and its private parent if that is missing. FileExistsError if the directory exists.

    The agents of a run on one host share the parent. One that ends removes it if it is empty, also between these steps.
    """
    for left in reversed(range(CREATE_TRIES)):
        try:
            make_private(os.path.dirname(path))
            os.mkdir(path, mode=0o700)
            return
        except FileNotFoundError:
            if not left:
                raise


def remove_private_children(parent: str, pattern: str) -> None:
    """Remove the entries of a private directory with matching names, and the directory itself if it is empty then.

    Nothing is removed from a directory of another user.
    """
    with contextlib.suppress(OSError):
        if _is_own_directory(os.lstat(parent)):
            for name in os.listdir(parent):
                if re.fullmatch(pattern, name):
                    shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
            os.rmdir(parent)


def avoid_occupied(path: str) -> str:
    """Return `path`, or the same name in a directory with an unpredictable name if another user occupies the usual one.

    Names in /tmp follow from the run id, which other users see in the process list.
    """
    parent, name = os.path.split(path)
    if parent not in _replaced:
        try:
            occupied = not _is_own_directory(os.lstat(parent))
        except OSError:
            occupied = False
        if not occupied:
            return path
        _replaced[parent] = os.path.join(os.path.dirname(parent), f"muster-{secrets.token_hex(4)}")
    return os.path.join(_replaced[parent], name)


def _is_own_directory(info: os.stat_result) -> bool:
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
