"""`muster.section()`: a program says what it does, so that a process that hangs is found and named.

Each process keeps one small file on the node's disk, which the agent of the node reads: the open sections with the
times at which they began, and how long earlier ones took. Times are those of the monotonic clock of the host.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from muster.control_requests import create_directory, own_directory

WARM_UP = 3  # first sections of a name in a process: they import, compile and fill caches
KEPT_DURATIONS = 32  # of each name
MAX_NAMES = 64  # whose durations are kept
STEP = "step"  # the section between two calls of muster.beat(step=...)


def record_path(directory: str, pid: int) -> str:
    """Return the file of a process."""
    return os.path.join(directory, f"process-{pid}")


def encode_record(record: dict[str, Any]) -> bytes:
    """Return the content of a file; a reader detects by the checksum that it was being written."""
    text = json.dumps(record).encode()
    return b"%08x %08d\n" % (zlib.crc32(text), len(text)) + text


def decode_record(content: bytes) -> dict[str, Any] | None:
    """Return the record of a file; None if it is incomplete."""
    header, _, rest = content.partition(b"\n")
    try:
        checksum, length = int(header[:8], 16), int(header[9:])
        record = json.loads(rest[:length]) if zlib.crc32(rest[:length]) == checksum else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class SectionRecord:
    """The sections of this process, and its file."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._open: dict[object, dict[str, Any]] = {}
        self._durations: dict[str, list[float]] = {}
        self._counts: dict[str, int] = {}
        self._step: int | None = None
        self._beat: float | None = None  # when the last step began, without the time in sections since
        self._file: int | None = None
        self._path: str | None = None

    def enter(self, name: str, timeout: float | None) -> object:
        """Begin a section and return the key with which it ends."""
        key = object()
        with self._lock:
            self._open[key] = {"name": name, "since": time.monotonic(), "timeout": timeout}
            self._write()
        return key

    def leave(self, key: object) -> None:
        """End a section. Its time is no part of the current step."""
        with self._lock:
            ended = self._open.pop(key)
            seconds = time.monotonic() - ended["since"]
            self._add(ended["name"], seconds)
            if self._beat is not None and not self._open:
                self._beat += seconds
            self._write()

    def beat(self, step: int | None) -> None:
        """Begin a step; without its number the program is between steps."""
        with self._lock:
            now = time.monotonic()
            if self._beat is not None and step is not None:
                self._add(STEP, now - self._beat)
            self._step, self._beat = (self._step, None) if step is None else (step, now)
            self._write()

    def close(self) -> None:
        """Remove the file: the process ends."""
        if self._path is not None and self.pid == os.getpid():
            with suppress(OSError):
                os.unlink(self._path)

    def _add(self, name: str, seconds: float) -> None:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        if count > WARM_UP and (name in self._durations or len(self._durations) < MAX_NAMES):
            durations = self._durations.setdefault(name, [])
            durations.append(round(seconds, 4))
            del durations[:-KEPT_DURATIONS]

    def _write(self) -> None:
        """Write the file in place: a section may last a millisecond. Errors never reach the program."""
        record = {
            "pid": self.pid,
            "rank": os.environ.get("RANK"),
            "step": self._step,
            "beat": self._beat,
            "open": list(self._open.values()),
            "durations": self._durations,
        }
        try:
            if self._file is None:
                directory = own_directory()
                if directory is None:
                    return
                create_directory(directory)
                self._path = record_path(directory, self.pid)
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                atexit.register(self.close)
            os.pwrite(self._file, encode_record(record), 0)
        except OSError:
            pass  # the cycle is being ended


_record: SectionRecord | None = None


def _own_record() -> SectionRecord:
    """Return the record of this process; a forked one begins its own."""
    global _record
    if _record is None or _record.pid != os.getpid():
        _record = SectionRecord()
    return _record


@contextmanager
def section(name: str, timeout: float | None = None) -> Iterator[None]:
    """Name what this process does, as in `with muster.section("checkpoint"):`. No-op outside a run.

    A process that stays in the section for longer than `timeout` seconds hangs: its node and rank are reported, all
    stacks are written, and --on-hang decides. Without a timeout, the limit is learned from earlier sections of this
    name. Sections may be nested, and used by several threads.
    """
    if "MUSTER_CONTROL_DIR" not in os.environ:
        yield
        return
    record = _own_record()
    key = record.enter(name, timeout)
    try:
        yield
    finally:
        record.leave(key)


def note_beat(step: int | None) -> None:
    """Record a call of `muster.beat()`."""
    if "MUSTER_CONTROL_DIR" in os.environ and (step is not None or _record is not None):
        _own_record().beat(step)
