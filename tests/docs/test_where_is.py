"""docs/reference/where-is.md names files and symbols that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "where-is.md"
BEHAVIORS = 46  # the least that the index must cover
ROWS = re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", PAGE.read_text(), re.MULTILINE)


def test_the_index_covers_enough_behaviors() -> None:
    assert len({behavior for behavior, _, _ in ROWS}) >= BEHAVIORS


@pytest.mark.parametrize(("behavior", "path", "symbol"), ROWS, ids=[row[0].replace(" ", "-") for row in ROWS])
def test_the_file_defines_the_symbol(behavior: str, path: str, symbol: str) -> None:
    tree = ast.parse((ROOT / "src" / "muster" / path).read_text(encoding="utf-8"))
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    assert symbol in defined, f"{behavior}: {path} does not define {symbol}"
