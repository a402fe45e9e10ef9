"""The library travels with a run: it imports Ray, the standard library and its own packages, and nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import muster.placement

PACKAGE = Path(muster.placement.__file__).parent
WITHOUT_RAY = ("errors.py", "runtime/health.py", "runtime/names.py", "runtime/restart_policy.py")


def is_without_ray(path: Path) -> bool:
    return path.parent.name == "planning" or str(path.relative_to(PACKAGE)) in WITHOUT_RAY


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_nothing_that_a_node_may_not_have(path: Path) -> None:
    allowed = {*sys.stdlib_module_names, "muster.placement", "muster.process", "muster.ports"}
    if not is_without_ray(path):
        allowed.add("ray")
    for node in ast.walk(ast.parse(path.read_text())):
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        for name in names:
            parts = name.split(".")
            assert (".".join(parts[:2]) if parts[0] == "muster" else parts[0]) in allowed, f"{path.name}: {name}"


def test_every_public_name_is_there() -> None:
    for name in muster.placement.__all__:
        assert getattr(muster.placement, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        muster.placement.nothing  # noqa: B018
