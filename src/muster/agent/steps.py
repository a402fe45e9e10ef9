"""What the launcher (srun, or the local one) says on its stderr of tasks that ended: who could not even start.

A node that cannot see the run directory, has no such interpreter or whose container does not start never joins; only
the launcher's stderr names it. The prelude's own words come through there too, as `muster: HOST: reason`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

_PRELUDE = re.compile(r"^muster: (?P<host>\S+): (?P<reason>.+)$")
_TASK = re.compile(r"^(?:srun|step): error: (?P<host>\S+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$")
_NODE = re.compile(r"^(?:srun|step): error: Node failure on (?P<host>\S+)")


@dataclass(frozen=True)
class EarlyEnd:
    """A task that the launcher saw end."""

    host: str
    rank: int | None
    reason: str


def parse(lines: Iterable[str]) -> list[EarlyEnd]:
    """Every ended task, with the prelude's reason where it gave one.

    >>> parse(["muster: n3: cannot see /x", "srun: error: n3: task 2: Exited with exit code 121"])
    [EarlyEnd(host='n3', rank=2, reason='cannot see /x')]
    """
    reasons: dict[str, str] = {}
    ends: list[EarlyEnd] = []
    for line in lines:
        if match := _PRELUDE.match(line):
            reasons[match["host"]] = match["reason"]
        elif match := _TASK.match(line):
            host, how = match["host"], match["how"]
            for rank in _ranks(match["tasks"]):
                ends.append(EarlyEnd(host, rank, reasons.get(host, f"its agent ended early: {how}")))
        elif match := _NODE.match(line):
            ends.append(EarlyEnd(match["host"], None, "Slurm reports that the node failed"))
    return ends


def _ranks(text: str) -> list[int]:
    """'0-2,5' -> [0, 1, 2, 5]"""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks.extend(range(int(first), int(last or first) + 1))
    return ranks


class StepsLog:
    """Follows the file; each look returns the ends that are new since the last."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = -1
        self._known: set[EarlyEnd] = set()

    def look(self) -> list[EarlyEnd]:
        try:
            size = os.stat(self._path).st_size
            if size == self._size:
                return []
            with open(self._path, encoding="utf-8", errors="replace") as file:
                ends = parse(line.rstrip() for line in file)
        except OSError:
            return []
        self._size = size
        new = [end for end in ends if end not in self._known]
        self._known.update(new)
        return new
