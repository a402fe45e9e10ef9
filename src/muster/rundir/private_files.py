"""Create files and directories of the run directory that only their owner can access, whatever the umask is."""

from __future__ import annotations

import os

PRIVATE_FILE_MODE = 0o600
PRIVATE_DIRECTORY_MODE = 0o700


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=private_opener)`; if it is created, only its owner can access it."""
    return os.open(path, flags, PRIVATE_FILE_MODE)


def make_private_dirs(path: str) -> None:
    """Create a directory, unless it exists, and its missing parents, which only their owner can access.

    `os.makedirs` gives parents the mode of the umask.
    """
    try:
        os.mkdir(path, PRIVATE_DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError:
        make_private_dirs(os.path.dirname(path))
        make_private_dirs(path)
