"""Shared parts of the benchmarks: description of the machine, goals, tables, result files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Goal:
    """A measured value and its upper limit."""

    what: str
    measured: float
    at_most: float
    unit: str = ""
    below: bool = False  # strictly

    @property
    def met(self) -> bool:
        return self.measured < self.at_most if self.below else self.measured <= self.at_most

    def to_json(self) -> dict[str, Any]:
        sign = "<" if self.below else "<="
        return {
            "what": self.what,
            "measured": round(self.measured, 3),
            "goal": f"{sign} {self.at_most:g}{self.unit}",
            "met": self.met,
        }


def machine() -> dict[str, Any]:
    """Return what results depend on, without names of hosts, paths or users."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 2**30, 1),
        "python": platform.python_version(),
        "ray": metadata.version("ray"),
    }


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns: the first to the left, all others to the right; with a rule below the first row."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def goals_table(goals: Sequence[Goal]) -> str:
    rows = [[g["what"], f"{g['measured']:g}", g["goal"], "met" if g["met"] else "MISSED"] for g in _records(goals)]
    return table([["goal", "measured", "wanted", ""], *rows])


def _records(goals: Sequence[Goal]) -> list[dict[str, Any]]:
    return [goal.to_json() for goal in goals]


def save(name: str, results: dict[str, Any]) -> Path:
    """Write the results atomically: an interrupted benchmark keeps the previous ones."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / name
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(results, indent=2) + "\n")
    temporary.replace(path)
    return path
