"""The supervisor's program is text: it needs only the standard library and the modules it contains."""

from __future__ import annotations

import ast
import sys

import pytest

from muster.process.bootstrap import LAZY_MODULES, MODULES, source_of


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 does not list the modules of its library")
def test_each_module_imports_the_standard_library_and_those_before_it() -> None:
    before: set[str] = set()
    for module in (*LAZY_MODULES, *MODULES):
        for node in ast.walk(ast.parse(source_of(module))):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            for name in names:
                assert name in before or name.partition(".")[0] in sys.stdlib_module_names, f"{module.__name__}: {name}"
        before.add(module.__name__)
