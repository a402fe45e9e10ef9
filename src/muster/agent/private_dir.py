"""A directory of ours alone on the node's own disk."""

from __future__ import annotations

import os
import stat


def make_private(path: str) -> None:
    """In a directory open to all, somebody may have made this one before us, to see what we put there."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not a private directory of ours: remove it")
