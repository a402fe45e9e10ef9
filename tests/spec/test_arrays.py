"""Job arrays: the tasks of a list, and jobs that cannot be arrays."""

from __future__ import annotations

from typing import Any

import pytest

from muster.spec import SpecError, load_job
from muster.spec.arrays import MAX_TASKS, task_ids


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("0-3", [0, 1, 2, 3]),
        ("0-3%2", [0, 1, 2, 3]),
        ("1,3,5", [1, 3, 5]),
        ("0-15:4", [0, 4, 8, 12]),
        ("7", [7]),
        ("5,1-2,2", [1, 2, 5]),
    ],
)
def test_a_list_has_the_tasks_that_sbatch_would_create(text: str, tasks: list[int]) -> None:
    assert task_ids(text) == tasks


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "1-", "-1", "0-4:0", "1,,2", "0-3%", "%2", f"0-{MAX_TASKS}", "0-9999999999"]
)
def test_an_invalid_task_list_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--array"):
        load_job(None, {"command": ["true"], "array": text})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"chain": "2"}, "cannot be a chain"),
        ({"backend": "local"}, "the local backend has no job arrays"),
        ({"groups": [{"name": "a", "nodes": 1}]}, "no arrays of jobs with groups"),
    ],
)
def test_a_job_that_cannot_be_an_array_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_job(None, {"command": ["true"], "array": "0-3", **fields})
