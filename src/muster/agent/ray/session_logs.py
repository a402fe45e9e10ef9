"""Ray's session logs of one node as one archive, of bounded size: of longer logs the ends are kept.

It is written straight to its place, in large pieces, and renamed when it is whole: one file and a handful of
operations on the shared filesystem, whatever Ray wrote. Nothing here may fail the run.
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

from muster.rundir.paths import RAY_LOGS_SUFFIX

logger = logging.getLogger(__name__)


LEAST_TAIL = 4096  # less of a log would tell nothing
PER_LOG = 2304  # what one more member adds at most: its headers, padding, and the line about what was left out
PER_ARCHIVE = 16384  # the archive's own end, and what compression adds to what does not compress
WRITE_SIZE = 1 << 20
DAEMONS = ("gcs_server", "raylet")  # their logs go first where there is no room or time for all


@dataclass(frozen=True)
class Keep:
    """Where the archive goes (without its ending), how large it may be, and when it may be written."""

    path: str
    most: int
    after: float = 0.0  # seconds from the moment Ray is gone, so that not all nodes write at once
    seconds: float = 10.0  # until which no more is begun


def wanted(policy: str, failed: bool) -> bool:
    """--ray-logs always | on-failure | never."""
    return policy == "always" or (policy == "on-failure" and failed)


def choose(logs: Sequence[tuple[str, int]], most: int) -> list[tuple[str, int]]:
    """Of (path, size) the (path, offset) to keep from: an archive of these has at most `most` bytes, however they pack.

    Every log gets the same share; what a short one leaves of it the longer ones have. Empty ones are left out, and
    the last of the list where there are too many for a useful piece of each.
    """
    left = most - most // 512 - PER_ARCHIVE
    logs = [(path, size) for path, size in logs if size][: max(0, left // (LEAST_TAIL + PER_LOG))]
    kept: dict[str, int] = {}
    for position, (path, size) in enumerate(sorted(logs, key=lambda log: log[1])):
        kept[path] = min(size, left // (len(logs) - position) - PER_LOG)
        left -= kept[path] + PER_LOG
    return [(path, size - kept[path]) for path, size in logs]


def collect(directory: str, keep: Keep) -> None:
    """Archive the logs in this directory; a full disk or lack of time costs the archive, never more."""
    until = time.monotonic() + keep.seconds
    try:
        chosen = choose(_found(directory), keep.most)
        if chosen:
            _write(directory, chosen, keep.path, until)
    except (OSError, tarfile.TarError) as error:
        logger.warning("Ray's logs could not be kept: %s", error)


def _found(directory: str) -> list[tuple[str, int]]:
    """Regular files below it, the daemons' first, then the last written first: those tell of the end."""
    files: list[tuple[bool, float, str, int]] = []
    for root, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(root, name)
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode):
                files.append((not name.startswith(DAEMONS), -found.st_mtime, path, found.st_size))
    return [(path, size) for _, _, path, size in sorted(files)]


def _write(directory: str, chosen: Sequence[tuple[str, int]], path: str, until: float) -> None:
    """Whole or not at all."""
    temporary, name = f"{path}{RAY_LOGS_SUFFIX}.tmp", os.path.basename(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with (
            _open_private(temporary) as file,
            tarfile.open(fileobj=file, mode="w:gz", compresslevel=1, format=tarfile.GNU_FORMAT) as tar,
        ):
            for number, (log, offset) in enumerate(chosen):
                if time.monotonic() > until:
                    logger.warning("no time was left to keep %d of %d logs of Ray's", len(chosen) - number, len(chosen))
                    break
                _add(tar, log, offset, os.path.join(name, os.path.relpath(log, directory)))
        os.rename(temporary, path + RAY_LOGS_SUFFIX)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _open_private(path: str) -> BinaryIO:
    """For its owner alone, as Ray's own directory was: logs may show what a program was given."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    return open(fd, "wb", buffering=WRITE_SIZE)


def _add(tar: tarfile.TarFile, log: str, offset: int, name: str) -> None:
    """One log from the offset on, with a line in the place of what was left out."""
    mark = f"[muster: the first {offset} bytes are left out]\n".encode() if offset else b""
    with open(log, "rb") as file:
        found = os.fstat(file.fileno())
        file.seek(offset)
        member = tarfile.TarInfo(name)  # by hand: tar.gettarinfo would ask the site's directory for the owner's name
        member.size, member.mtime, member.mode = len(mark) + found.st_size - offset, int(found.st_mtime), 0o600
        tar.addfile(member, _Marked(mark, file))


class _Marked(io.RawIOBase):
    """The mark, then the file."""

    def __init__(self, mark: bytes, file: BinaryIO) -> None:
        self._mark, self._file = mark, file

    def read(self, size: int = -1) -> bytes:
        mark, self._mark = self._mark, b""
        return mark + self._file.read(size - len(mark) if size >= 0 else -1)
