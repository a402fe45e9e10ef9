"""Directories on the node's disk that only this user can access."""

from __future__ import annotations

import os
import stat


def make_private(path: str) -> None:
    """Create the directory. PermissionError if it exists with other access: in /tmp another user may have made it."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory that only this user can access: remove it")
