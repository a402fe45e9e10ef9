"""The schedule of the tests: its files exist, and those that share a lab have the same one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from tests.schedule import GROUPS, LONG, group_of, order

TESTS = Path(__file__).parents[1]
LABS = [name for name, files in GROUPS.items() if files[0].startswith("lab/")]


def lab_of(file: str) -> Any:
    """Return the options of a file's lab; those without have a lab of four nodes."""
    for node in ast.parse((TESTS / file).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAB":
            return ast.literal_eval(node.value)
    return {"nodes": 4}


@pytest.mark.parametrize("group", LABS)
def test_files_that_share_a_lab_have_the_same_one(group: str) -> None:
    assert len({str(lab_of(file)) for file in GROUPS[group]}) == 1


def test_every_file_of_the_schedule_exists() -> None:
    named = [*(file for files in GROUPS.values() for file in files), *(name for name in LONG if name not in GROUPS)]
    assert [file for file in named if not (TESTS / file).is_file()] == []
    assert len(named) == len(set(named))


class Item:
    """A collected test."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_the_files_of_a_group_are_adjacent_and_long_ones_come_first() -> None:
    files = ["spec/test_model.py", "lab/test_gang.py", "spec/test_load.py", "lab/test_run.py", "lab/test_succession.py"]
    items: list[Any] = [Item(f"tests/{file}::test_{number}") for number in range(2) for file in files]
    items.append(Item("tests/spec/test_model.py::test_2"))
    order(items)
    assert [group_of(item.nodeid) for item in items] == [
        *["four nodes"] * 2,
        *["four nodes, too"] * 4,
        *["spec/test_model.py"] * 3,
        *["spec/test_load.py"] * 2,
    ]
    assert [item.nodeid for item in items[2:4]] == ["tests/lab/test_run.py::test_0", "tests/lab/test_run.py::test_1"]
