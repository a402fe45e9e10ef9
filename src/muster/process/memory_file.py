"""Unnamed files in memory, to pass bytes to another process as a descriptor.

A CPython built with a C library older than 2.27 (conda's, many of uv's) has no `os.memfd_create`. The node's C library
usually has the function; otherwise an unnamed file in /dev/shm is used, or one in the directory for temporary files.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Sequence

MFD_CLOEXEC, MFD_ALLOW_SEALING = 0x1, 0x2
F_ADD_SEALS = 1033  # fcntl has no name for it before Python 3.10, nor in such builds
SEALS = 0x1 | 0x2 | 0x4 | 0x8  # F_SEAL_*: no process can change the file
SHARED_MEMORY = "/dev/shm"


def memory_file(name: str, parts: Sequence[bytes], sealed: bool = False) -> int:
    """Return a descriptor at the beginning of a file with the concatenated parts; /proc shows it as `name`.

    If `sealed`, no process can change the file; one in a directory cannot be changed through the descriptor. Raises
    OSError where no such file can be created.
    """
    fd = _create(name)
    if fd is None:
        return _unnamed_file(parts, sealed)
    try:
        _fill(fd, parts)
        if sealed:
            fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _create(name: str) -> int | None:
    """Create a memfd; None if neither Python nor the C library has the function, or the kernel refuses."""
    flags = MFD_CLOEXEC | MFD_ALLOW_SEALING
    with contextlib.suppress(OSError, AttributeError):
        if hasattr(os, "memfd_create"):
            return os.memfd_create(name, flags)
        fd: int = ctypes.CDLL(None).memfd_create(name.encode(), flags)
        return fd if fd >= 0 else None
    return None


def _unnamed_file(parts: Sequence[bytes], sealed: bool) -> int:
    """Create an unnamed file in a directory; only its owner may read it."""
    import tempfile  # lazily: few processes need it

    places = [SHARED_MEMORY, tempfile.gettempdir()]
    problems = []
    for place in places:
        try:
            with tempfile.TemporaryFile(dir=place, buffering=0) as file:
                _fill(file.fileno(), parts)
                if not sealed:
                    return os.dup(file.fileno())
                os.fchmod(file.fileno(), 0o400)
                return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            problems.append(f"{place}: {error.strerror}")
    raise OSError(
        f"no unnamed file can be written ({'; '.join(problems)}): free space or allow writing in one of these "
        "directories, or use a Python that has os.memfd_create"
    )


def _fill(fd: int, parts: Sequence[bytes]) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
