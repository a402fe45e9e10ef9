"""Find the filesystem type of a path in the kernel's mount table."""

from __future__ import annotations

import os
import re

MOUNT_TABLE = "/proc/self/mountinfo"


def filesystem_type(path: str, table: str) -> str:
    """Return the type of the innermost mount that contains `path`; a later mount hides an earlier one."""
    best, kind = "", "unknown"
    for line in table.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split()
        if not dash or len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def probe_filesystem_type(path: str) -> str:
    try:
        with open(MOUNT_TABLE, encoding="utf-8", errors="replace") as file:
            return filesystem_type(os.path.realpath(path), file.read())
    except OSError:
        return "unknown"
