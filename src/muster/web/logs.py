"""List the logs of a run, read ranges of them and search lines, without reading a whole log into memory."""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass

from muster.process.log_reader import LogReader, log_end
from muster.process.log_segments import find_segments, segment_start
from muster.rundir import RunPaths

MAX_PART_BYTES = 256 * 1024
SEARCH_BLOCK_BYTES = 4 * 1024 * 1024
SEARCH_S = 0.5  # per request; the answer contains the position to continue from
MAX_FOUND = 200
MAX_LINE_BYTES = 4000

_JOB_OUTPUT = re.compile(r"slurm-.*\.out|job\.out")
_BESIDE_LOGS = ("phases.log", "steps.log")
_NO_TEXT = (".tar.gz", ".tar.gz.tmp")


@dataclass(frozen=True)
class LogFile:
    """A log, which may have several files; `name` is its path relative to the run directory.

    `size` counts output that is not kept any more: positions in the log do not change.
    """

    name: str
    path: str
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether it is one file."""
        return len(find_segments(self.path)) < 2


@dataclass(frozen=True)
class LogPart:
    """A range of a log, in whole lines where possible; `dropped` bytes before it are not kept any more."""

    start: int
    data: bytes
    size: int
    dropped: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(frozen=True)
class FoundLines:
    """Matching lines with their offsets; `next` is the offset to continue from, None at the end."""

    lines: list[tuple[int, bytes]]
    next: int | None
    size: int


def logs(run: RunPaths) -> list[LogFile]:
    """Return the text logs of a run, newest attempt first, the driver's log first."""
    found = [_log(run, name) for name in _names(run)]
    return sorted((log for log in found if log is not None), key=_order)


def find_log(run: RunPaths, name: str) -> LogFile | None:
    """Return the log with this name, or None; the name is compared with known logs, never used as a path."""
    return _log(run, name) if name in set(_names(run)) else None


def _names(run: RunPaths) -> list[str]:
    names = [name for name in _listed(run.root) if _JOB_OUTPUT.fullmatch(name)]
    for attempt in _listed(run.root):
        if re.fullmatch(r"attempt-\d+", attempt):
            names += [f"{attempt}/{name}" for name in _BESIDE_LOGS]
            names += _below(run.root, f"{attempt}/logs", 3)
    return names


def _below(root: str, place: str, depth: int) -> list[str]:
    names: list[str] = []
    for name in _listed(os.path.join(root, place)):
        path = f"{place}/{name}"
        if depth and os.path.isdir(os.path.join(root, path)) and not os.path.islink(os.path.join(root, path)):
            names += _below(root, path, depth - 1)
        elif not name.endswith(_NO_TEXT) and not _is_further_file(name):
            names.append(path)
    return names


def _is_further_file(name: str) -> bool:
    """Whether this is a further file of a log, which is shown as a part of it."""
    return bool(segment_start(name.rpartition(".")[0], name))


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _log(run: RunPaths, name: str) -> LogFile | None:
    """Return the log if it is a regular file: a link may lead anywhere, and reading a pipe blocks."""
    path = os.path.join(run.root, name)
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    end = log_end(path)
    return LogFile(name, path, found.st_size if end is None else end[0])


def _order(log: LogFile) -> tuple[int, int, str]:
    attempt = re.match(r"attempt-(\d+)/", log.name)
    # Check for services first: their logs are named after nodes, which may have any name.
    kinds = {"/services/": 3, "/driver.log": 0, "/guest-": 1, "/node-": 2, "/stacks-": 4, "phases.log": 5}
    kind = next((number for word, number in kinds.items() if word in log.name), 6)
    return (-int(attempt[1]) if attempt else 1, kind, log.name)


def read_part(log: LogFile, start: int, most: int = MAX_PART_BYTES) -> LogPart:
    """Read whole lines from about `start`, which counts from the end if it is negative."""
    start = min(max(0, start if start >= 0 else log.size + start), log.size)
    reader = LogReader(log.path, max(0, start - 1))
    data = _read(reader, min(max(0, most), MAX_PART_BYTES) + (1 if start else 0))
    if reader.dropped:
        start = reader.position - len(data)
    elif start:
        before, data = data[:1], data[1:]
        first = data.find(b"\n") + 1 if before != b"\n" else 0
        start, data = start + first, data[first:]
    if start + len(data) < log.size and (last := data.rfind(b"\n") + 1):
        data = data[:last]
    return LogPart(start, data, log.size, reader.dropped)


def _read(reader: LogReader, count: int) -> bytes:
    """Read up to `count` bytes, also from several files, but not beyond a gap."""
    data = reader.read(count)
    while data and len(data) < count:
        dropped, position = reader.dropped, reader.position
        more = reader.read(count - len(data))
        if reader.dropped > dropped:
            reader.dropped, reader.position = dropped, position
            break
        if not more:
            break
        data += more
    return data


def read_on(log: LogFile, start: int) -> LogPart:
    """Read from exactly `start`, the end of the previous part; leave an incomplete character for the next part."""
    reader = LogReader(log.path, min(max(0, start), log.size))
    data = reader.read(MAX_PART_BYTES)
    return LogPart(reader.position - len(data), data[: len(data) - _incomplete(data)], log.size, reader.dropped)


def _incomplete(data: bytes) -> int:
    """Return the number of bytes at the end that belong to an incomplete UTF-8 character."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            wanted = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
            return back if wanted > back else 0
    return 0


def find_lines(log: LogFile, words: bytes, start: int, clock: float = SEARCH_S) -> FoundLines:
    """Find lines that contain the text, ignoring case, from `start` on, for at most `clock` seconds."""
    wanted, deadline, found = words.lower(), time.monotonic() + clock, list[tuple[int, bytes]]()
    reader, rest = LogReader(log.path, max(0, start)), b""
    while time.monotonic() < deadline and len(found) < MAX_FOUND:
        before = reader.position
        block = reader.read(SEARCH_BLOCK_BYTES)
        at = reader.position - len(block) - len(rest)
        if at + len(rest) != before:  # a part was removed, and with it the rest of a line
            at, rest = reader.position - len(block), b""
        data = rest + block
        whole = len(data) if not block else data.rfind(b"\n") + 1 or len(data)
        found += [(at + begin, line) for begin, line in _matching(data[:whole], wanted)]
        rest = data[whole:]
        if not block:
            return FoundLines(found[:MAX_FOUND], None if len(found) <= MAX_FOUND else found[MAX_FOUND][0], log.size)
    further = found[MAX_FOUND][0] if len(found) > MAX_FOUND else reader.position - len(rest)
    return FoundLines(found[:MAX_FOUND], further, log.size)


def _matching(data: bytes, wanted: bytes) -> list[tuple[int, bytes]]:
    lowered, found, at = data.lower(), list[tuple[int, bytes]](), 0
    while (hit := lowered.find(wanted, at)) >= 0:
        begin, end = data.rfind(b"\n", 0, hit) + 1, data.find(b"\n", hit)
        end = len(data) if end < 0 else end
        found.append((begin, data[begin : min(end, begin + MAX_LINE_BYTES)]))
        at = end + 1
    return found
