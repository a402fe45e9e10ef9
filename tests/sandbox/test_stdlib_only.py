"""The sandbox travels to nodes that have nothing but Python 3.9: it imports only the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from muster.sandbox.engine.zygote import JAIL_MODULES, PROCESS_MODULES

ROOT = Path(muster.__file__).parent
MODULES = [*sorted((ROOT / "sandbox").rglob("*.py")), ROOT / "prometheus.py"]
ALLOWED = ("exit_codes", "process", "prometheus", "sandbox")
OPTIONAL = dict.fromkeys(("sandbox/jail/notebook.py", "sandbox/jail/session.py"), "IPython")


def imports(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.append(str(node.module))
    return found


def is_allowed(name: str, path: Path) -> bool:
    first, _, rest = name.partition(".")
    if first == "muster":
        return rest.partition(".")[0] in ALLOWED
    return first in sys.stdlib_module_names or OPTIONAL.get(str(path.relative_to(ROOT))) == first


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_valid_on_python_3_9_and_imports_only_the_standard_library(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 9))
    assert [name for name in imports(tree) if not is_allowed(name, path)] == []
    if path.name != "__init__.py":
        assert "from __future__ import annotations\n" in source


def test_all_modules_of_the_jail_are_sent_to_it() -> None:
    assert {path.stem for path in (ROOT / "sandbox" / "jail").glob("*.py")} - {"__init__"} == set(JAIL_MODULES)


def test_the_jail_imports_only_modules_that_are_sent_to_it() -> None:
    sent = {*PROCESS_MODULES, "muster.sandbox.jail", *(f"muster.sandbox.jail.{name}" for name in JAIL_MODULES)}
    for path in (ROOT / "sandbox" / "jail").glob("*.py"):
        assert [n for n in imports(ast.parse(path.read_text())) if n.startswith("muster") and n not in sent] == []


def test_the_client_pulls_in_nothing_foreign() -> None:
    code = (
        "import sys; before = set(sys.modules); import muster.sandbox as s; s.Client; print(set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in ast.literal_eval(done.stdout)}
    assert loaded <= {*sys.stdlib_module_names, "muster"}
