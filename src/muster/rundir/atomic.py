"""Publish files on a shared filesystem: a reader sees a complete file or none."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any

from muster.rundir.private_files import PRIVATE_FILE_MODE


def temporary_name(path: str) -> str:
    """Return a name that is unique among hosts and processes: two writers never share one."""
    return f"{path}.{socket.gethostname()}.{os.getpid()}.tmp"


def write_atomic(path: str, text: str, mode: int = PRIVATE_FILE_MODE) -> None:
    """Write to a temporary name, then rename it over the target."""
    temporary = temporary_name(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(temporary, path)
    except BaseException:
        _unlink_quietly(temporary)
        raise


def write_json(path: str, value: Any) -> None:
    write_atomic(path, json.dumps(value) + "\n")


def read_json(path: str) -> Any | None:
    """Return the published value; None if the file does not exist (yet) or is incomplete.

    Invalid UTF-8 is replaced: a job script may have recorded it from a launcher's stderr.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def read_record(path: str) -> dict[str, Any]:
    """Return the published object; empty if the file does not exist (yet), is incomplete, or holds another type."""
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def is_listed(path: str) -> bool:
    """Whether a file exists, by listing its directory.

    A network filesystem may cache for half a minute that a file did not exist; a listing is current.
    """
    try:
        return os.path.basename(path) in os.listdir(os.path.dirname(path))
    except OSError:
        return False


def written_at(path: str) -> float | None:
    """Return when a file was last written, in seconds since the epoch; None if that is unknown."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _unlink_quietly(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
