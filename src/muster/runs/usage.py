"""Disk usage of runs in bytes and inodes, by kind of file. Links are counted, never followed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from muster.rundir import RunPaths

PARTS = ("logs", "ray", "output", "other")

_LOG = re.compile(r"slurm-.*\.out|job\.out")
_ATTEMPT_LOG = re.compile(r"logs|.*\.log|events-\d+\.jsonl")

Path = tuple[str, ...]  # relative to the run's directory; empty for the directory itself


@dataclass(frozen=True)
class DiskUsage:
    """Bytes as `du` counts them, and inodes: many sites limit both."""

    bytes: int = 0
    files: int = 0

    def __add__(self, other: DiskUsage) -> DiskUsage:
        return DiskUsage(self.bytes + other.bytes, self.files + other.files)


def part_of(path: Path) -> str:
    """Return the part (one of PARTS) to which a path in a run directory belongs."""
    if path[:1] == ("output",):
        return "output"
    if path and path[0].startswith("attempt-"):
        if path[1:3] == ("logs", "ray"):
            return "ray"
        return "logs" if len(path) > 1 and _ATTEMPT_LOG.fullmatch(path[1]) else "other"
    return "logs" if path and _LOG.fullmatch(path[0]) else "other"


def measure(run: RunPaths, counts: Callable[[Path], bool] = lambda path: True) -> dict[str, DiskUsage]:
    """Return the usage by part, of the paths for which `counts` returns true."""
    found = dict.fromkeys(PARTS, DiskUsage())
    for path, stat in _entries(run.root, ()):
        if counts(path):
            part = part_of(path)
            found[part] += DiskUsage(stat.st_blocks * 512, 1)
    return found


def total(parts: dict[str, DiskUsage]) -> DiskUsage:
    return sum(parts.values(), DiskUsage())


def _entries(directory: str, path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the directory and everything below it, except files that vanish meanwhile or are unreadable."""
    with contextlib.suppress(OSError):
        yield path, os.lstat(directory)
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, (*path, entry.name))
            continue
        with contextlib.suppress(OSError):
            yield (*path, entry.name), entry.stat(follow_symlinks=False)
