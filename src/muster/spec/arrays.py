"""Job arrays: which tasks `--array` names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.spec.model import JobSpec

MOST_TASKS = 1000  # each is a run with a directory of its own, written before the array is submitted

_LIST = re.compile(r"(?P<parts>[\d,:-]+)(%\d+)?", re.ASCII)
_PART = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)(:(?P<step>[1-9]\d*))?)?", re.ASCII)


def task_ids(text: str) -> list[int]:
    """The tasks that sbatch would make of it, in order.

    >>> task_ids("0-6:3,9%2")
    [0, 3, 6, 9]
    """
    whole = _LIST.fullmatch(text)
    parts = [_PART.fullmatch(part) for part in whole["parts"].split(",")] if whole else []
    found: set[int] = set()
    for part in parts:
        if part is None:
            return _refuse()
        first, last = int(part["first"]), int(part["last"] or part["first"])
        if last < first:
            raise ValueError(f"counts backwards from {first} to {last}")
        tasks = range(first, last + 1, int(part["step"] or 1))
        if len(tasks) + len(found) > MOST_TASKS:
            raise ValueError(f"has more than {MOST_TASKS} tasks, each of which is a run with a directory of its own")
        found.update(tasks)
    return sorted(found) or _refuse()


def _refuse() -> list[int]:
    raise ValueError("is not a list of tasks")


def checked(text: str) -> str:
    """The list as it was written, if it is one."""
    task_ids(text)
    return text


def problem(spec: JobSpec) -> str | None:
    """Why this job cannot be an array; None when it can, or is none."""
    if spec.array is None:
        return None
    if spec.groups:
        return "--array: Slurm has no arrays of jobs with groups of unlike nodes; submit them one by one"
    if spec.chain > 1:
        return "--array: an array cannot be a chain too; give --array or --chain"
    if spec.backend == "local":
        return "--array: one machine has no job arrays; run the tasks one after the other, or submit them to Slurm"
    return None
