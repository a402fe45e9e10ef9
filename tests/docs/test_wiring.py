"""How the parts of the core are wired: few constructor parameters, and no callbacks that are assigned from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "muster"
PACKAGES = ("agent", "election", "lifecycle", "process")
MAX_PARAMETERS = 6


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            yield path.relative_to(SOURCE), ast.parse(path.read_text())


def constructors(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each class with an __init__ and the number of its parameters."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    given = method.args
                    yield node.name, len(given.args) - 1 + len(given.kwonlyargs)


def assigned_callbacks(module: ast.Module) -> Iterator[str]:
    """Yield the attributes called on_... that are assigned."""
    for node in ast.walk(module):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr.startswith("on_"):
                yield target.attr


def test_no_constructor_of_the_core_has_more_than_six_parameters() -> None:
    many = [(str(path), name, count) for path, module in modules() for name, count in constructors(module)]
    assert [one for one in many if one[2] > MAX_PARAMETERS] == []


def test_no_part_of_the_core_is_wired_with_callbacks_that_are_assigned() -> None:
    assert [(str(path), name) for path, module in modules() for name in assigned_callbacks(module)] == []


@pytest.mark.parametrize(
    "source", ["part.on_end = print", "class A:\n    def __init__(self):\n        self.on_end: X = y"]
)
def test_an_assigned_callback_would_be_found(source: str) -> None:
    assert list(assigned_callbacks(ast.parse(source))) == ["on_end"]
