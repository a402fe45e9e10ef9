"""Test files share code through modules for it, not by importing each other."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported_modules(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
    return modules


def test_no_test_file_imports_another() -> None:
    files = {".".join(path.relative_to(TESTS.parent).with_suffix("").parts): path for path in TESTS.rglob("test_*.py")}
    imports = {name: imported_modules(path) & files.keys() for name, path in files.items()}
    assert {name: others for name, others in imports.items() if others} == {}
