"""Parse and check the task list of a job array (`--array`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.spec.model import JobSpec

MAX_TASKS = 1000  # each task has a run directory, which is written before the array is submitted

_LIST = re.compile(r"(?P<parts>[\d,:-]+)(%\d+)?", re.ASCII)
_PART = re.compile(r"(?P<first>\d+)(-(?P<last>\d+)(:(?P<step>[1-9]\d*))?)?", re.ASCII)


def task_ids(text: str) -> list[int]:
    """Return the task numbers that sbatch would create, in order; raise ValueError if the list is invalid.

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
            raise ValueError(f"has a range that ends before it starts: {first}-{last}")
        tasks = range(first, last + 1, int(part["step"] or 1))
        if len(tasks) + len(found) > MAX_TASKS:
            raise ValueError(f"has more than {MAX_TASKS} tasks; submit several smaller arrays")
        found.update(tasks)
    return sorted(found) or _refuse()


def _refuse() -> list[int]:
    raise ValueError("is not a list of tasks")


def task_list(text: str) -> str:
    """Return the list unchanged if it is valid."""
    task_ids(text)
    return text


def validate_array(spec: JobSpec) -> None:
    """Raise ValueError if --array does not fit the job's other fields."""
    if spec.array is None:
        return
    if spec.groups:
        raise ValueError("--array: Slurm has no arrays of jobs with groups; submit the tasks one by one")
    if spec.chain > 1:
        raise ValueError("--array: an array cannot be a chain; give either --array or --chain")
    if spec.backend == "local":
        raise ValueError("--array: the local backend has no job arrays; run the tasks in sequence, or use Slurm")
