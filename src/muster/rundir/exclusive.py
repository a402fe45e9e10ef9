"""Claim a name on a shared filesystem: of several concurrent callers, on any hosts, exactly one succeeds.

    filesystem              claim
    with hard links         link a complete temporary file to the name
    without hard links      rename a directory that holds the complete record to `<name>.claim`, then publish the record

Both steps are atomic, and what they show is complete. `rename` does not replace a directory that is not empty. If the
winner of such a directory dies before it publishes the record, the next claimant publishes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from typing import Any

from muster.rundir.atomic import is_listed, temporary_name, write_atomic
from muster.rundir.private_files import PRIVATE_DIRECTORY_MODE, private_opener

# Answers to `link` on filesystems without hard links. Some servers answer EPERM if the name exists.
NO_HARD_LINKS = frozenset(
    [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.EINVAL]
)


def create_exclusive(path: str, value: Any) -> bool:
    """Publish `value` unless the file exists, and return whether this call did.

    Raises OSError if the filesystem fails; then the file may exist, with this value.
    """
    text, temporary = json.dumps(value) + "\n", temporary_name(path)
    try:
        with open(temporary, "w", encoding="utf-8", opener=private_opener) as file:
            file.write(text)
        try:
            os.link(temporary, path)
            return True
        except OSError as error:
            if _is_linked(temporary):
                return True
            if error.errno == errno.EEXIST or is_listed(path):
                return False
            if error.errno not in NO_HARD_LINKS:
                raise
        return False if has_hard_links(temporary) else _rename_directory(path, text)
    finally:
        _unlink_quietly(temporary)


def release_exclusive(path: str) -> None:
    """Remove a claim, so that the next caller succeeds. Raises OSError."""
    os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(_claim_directory(path))


def has_hard_links(path: str) -> bool:
    """Return whether the file can get a second name in its directory. Raises OSError if the filesystem fails."""
    second = f"{path}.link"
    try:
        os.link(path, second)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        return False
    finally:
        _unlink_quietly(second)
    return True


def _is_linked(temporary: str) -> bool:
    """Whether `link` succeeded although its reply was lost, as over NFS."""
    with contextlib.suppress(OSError):
        return os.stat(temporary).st_nlink == 2
    return False


def _rename_directory(path: str, text: str) -> bool:
    claim, temporary = _claim_directory(path), temporary_name(_claim_directory(path))
    own = os.urandom(8).hex()  # the name of the record shows whose it is, also if the reply to `rename` was lost
    try:
        os.mkdir(temporary, PRIVATE_DIRECTORY_MODE)
        with open(os.path.join(temporary, own), "w", encoding="utf-8", opener=private_opener) as file:
            file.write(text)
        os.rename(temporary, claim)
        won = True
    except OSError:
        names = _names(claim)
        if not names:
            raise
        won = own in names
        if not won:
            with open(os.path.join(claim, names[0]), encoding="utf-8", errors="replace") as file:
                text = file.read()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if not is_listed(path):
        write_atomic(path, text)
    return won


def _claim_directory(path: str) -> str:
    return f"{path}.claim"


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _unlink_quietly(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
