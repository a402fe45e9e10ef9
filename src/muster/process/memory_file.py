"""Files without a name, in memory: how bytes get to another process as a descriptor.

A CPython that was built with a C library older than 2.27 (conda's, many of uv's) has no `os.memfd_create`. The library
of the node that it runs on usually has the function; where it has not, an unnamed file in /dev/shm does, which is
memory, too, or else one in the directory for temporary files.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Sequence

MFD_CLOEXEC, MFD_ALLOW_SEALING = 0x1, 0x2
F_ADD_SEALS = 1033  # fcntl has no name for it before Python 3.10, nor in such builds
SEALS = 0x1 | 0x2 | 0x4 | 0x8  # F_SEAL_*: no process can change it any more
SHARED_MEMORY = "/dev/shm"


def memory_file(name: str, parts: Sequence[bytes], sealed: bool = False) -> int:
    """Return a descriptor, at the beginning of a file that holds the parts, one after the other.

    `sealed`: a process that gets the descriptor cannot change the file (an unnamed one: cannot through the descriptor).
    `name` is what /proc shows.
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
    """Create a file in memory; None where neither Python nor the C library can make one, or the kernel refuses."""
    flags = MFD_CLOEXEC | MFD_ALLOW_SEALING
    with contextlib.suppress(OSError, AttributeError):
        if hasattr(os, "memfd_create"):
            return os.memfd_create(name, flags)
        fd: int = ctypes.CDLL(None).memfd_create(name.encode(), flags)
        return fd if fd >= 0 else None
    return None


def _unnamed_file(parts: Sequence[bytes], sealed: bool) -> int:
    """Create the same in a directory; only its owner may read it."""
    import tempfile  # here, since few processes need it

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
