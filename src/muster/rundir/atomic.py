"""Publishing on a shared filesystem: a reader sees a whole file or none."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any


def _temporary(path: str) -> str:
    """Unique among hosts and processes, so that two writers never share one."""
    return f"{path}.{socket.gethostname()}.{os.getpid()}.tmp"


def write_atomic(path: str, text: str, mode: int = 0o644) -> None:
    """Write to a temporary name, then rename over the target."""
    temporary = _temporary(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(temporary, path)
    except BaseException:
        _forget(temporary)
        raise


def write_json(path: str, value: Any) -> None:
    write_atomic(path, json.dumps(value) + "\n")


def create_exclusive(path: str, value: Any) -> bool:
    """Publish only if nobody has: exactly one of several claimants on any hosts gets True.

    `link` is atomic even over NFS, where its answer may be lost; the link count tells what really happened.
    """
    temporary = _temporary(path)
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")
    try:
        with contextlib.suppress(OSError):
            os.link(temporary, path)
        return os.stat(temporary).st_nlink == 2
    finally:
        _forget(temporary)


def read_json(path: str) -> Any | None:
    """The published value; None when it is not there (yet) or is not whole.

    Bytes that are no text are replaced: a job script may have recorded them from a launcher's last words.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def read_record(path: str) -> dict[str, Any]:
    """The published object; empty when it is not there (yet), is not whole, or is something else."""
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def _forget(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
