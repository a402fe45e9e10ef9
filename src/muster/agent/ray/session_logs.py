"""Archive of one node's Ray session logs, of bounded size: of long logs only the end is kept.

It is written directly to the run directory, in large pieces, and renamed when complete: one file and few operations on
the shared filesystem. A failure here never fails the run.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import stat
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from muster.rundir import make_private_dirs
from muster.rundir.paths import RAY_LOGS_SUFFIX

logger = logging.getLogger(__name__)


MIN_TAIL_BYTES = 4096  # less of a log is useless
MEMBER_OVERHEAD_BYTES = 2304  # per log at most: headers, padding, and the line about the omitted part
ARCHIVE_OVERHEAD_BYTES = 16384  # the end of the archive, and the growth of incompressible data by compression
WRITE_BUFFER_BYTES = 1 << 20
DAEMONS = ("gcs_server", "raylet")  # their logs come first, in case there is no room or time for all


@dataclass(frozen=True)
class ArchiveOptions:
    """Path (without suffix), maximum size and timing of the archive."""

    path: str
    max_bytes: int
    after: float = 0.0  # seconds to wait after Ray has ended, so that not all nodes write at once
    seconds: float = 10.0  # after which no further log is added


def should_keep(policy: str, failed: bool) -> bool:
    """Return whether logs are kept, by --ray-logs always | on-failure | never."""
    return policy == "always" or (policy == "on-failure" and failed)


def choose_tails(logs: Sequence[tuple[str, int]], max_bytes: int) -> list[tuple[str, int]]:
    """Return (path, offset) of the part of each log (path, size) to keep.

    The archive has at most `max_bytes`, even if nothing compresses. Every log gets the same share; longer logs also get
    what shorter ones do not need. Empty logs are omitted, and the last ones if there are too many.
    """
    left = max_bytes - max_bytes // 512 - ARCHIVE_OVERHEAD_BYTES
    logs = [(path, size) for path, size in logs if size][: max(0, left // (MIN_TAIL_BYTES + MEMBER_OVERHEAD_BYTES))]
    kept: dict[str, int] = {}
    for position, (path, size) in enumerate(sorted(logs, key=lambda log: log[1])):
        kept[path] = min(size, left // (len(logs) - position) - MEMBER_OVERHEAD_BYTES)
        left -= kept[path] + MEMBER_OVERHEAD_BYTES
    return [(path, size - kept[path]) for path, size in logs]


def archive_logs(directory: str, options: ArchiveOptions) -> None:
    """Archive the logs in this directory; a full disk or lack of time only affects the archive."""
    until = time.monotonic() + options.seconds
    try:
        chosen = choose_tails(_list_logs(directory), options.max_bytes)
        if chosen:
            _write(directory, chosen, options.path, until)
    except (OSError, tarfile.TarError) as error:
        logger.warning("Ray's logs could not be kept: %s", error)


def _list_logs(directory: str) -> list[tuple[str, int]]:
    """Return path and size of the regular files: the daemons' first, then the most recently written."""
    files: list[tuple[bool, float, str, int]] = []
    for root, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(root, name)
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode):
                files.append((not name.startswith(DAEMONS), -found.st_mtime, path, found.st_size))
    return [(path, size) for _, _, path, size in sorted(files)]


def _write(directory: str, chosen: Sequence[tuple[str, int]], path: str, until: float) -> None:
    """Write the archive atomically."""
    temporary, name = f"{path}{RAY_LOGS_SUFFIX}.tmp", os.path.basename(path)
    make_private_dirs(os.path.dirname(path))
    try:
        with (
            _open_private(temporary) as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=1, format=tarfile.GNU_FORMAT) as tar,
        ):
            for number, (log, offset) in enumerate(chosen):
                if time.monotonic() > until:
                    logger.warning("no time was left to keep %d of %d Ray logs", len(chosen) - number, len(chosen))
                    break
                _add(tar, log, offset, os.path.join(name, os.path.relpath(log, directory)))
        os.rename(temporary, path + RAY_LOGS_SUFFIX)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _open_private(path: str) -> BinaryIO:
    """Create a file that only its owner can read: logs may show arguments and variables of programs."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    return open(fd, "wb", buffering=WRITE_BUFFER_BYTES)


def _add(tar: tarfile.TarFile, log: str, offset: int, name: str) -> None:
    """Add one log from the offset on, preceded by a line about the omitted part."""
    mark = f"[muster: the first {offset} bytes are left out]\n".encode() if offset else b""
    with open(log, "rb") as file:
        found = os.fstat(file.fileno())
        file.seek(offset)
        member = tarfile.TarInfo(name)  # tar.gettarinfo would query the site's directory service for the owner's name
        member.size, member.mtime, member.mode = len(mark) + found.st_size - offset, int(found.st_mtime), 0o600
        tar.addfile(member, _MarkedFile(mark, file))


class _MarkedFile(io.RawIOBase):
    """Reads as the mark followed by the file."""

    def __init__(self, mark: bytes, file: BinaryIO) -> None:
        self._mark, self._file = mark, file

    def read(self, size: int = -1) -> bytes:
        mark, self._mark = self._mark, b""
        return mark + self._file.read(size - len(mark) if size >= 0 else -1)
