"""Test files mirror the modules, and share code through modules for it, not by importing each other."""

from __future__ import annotations

import ast
from pathlib import Path

from tests import schedule

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "muster"
TESTED_ELSEWHERE = {
    # packages that only import their public names on first use
    "__init__.py": "test_api.py",
    "spec/__init__.py": "spec/test_load.py",
    "placement/__init__.py": "placement/test_imports.py",
    "sandbox/__init__.py": "sandbox/client/test_both_clients.py",
    # an interface, and values that are made in one place and used in another
    "election/leased_run.py": "election/test_leader_lease.py",
    "agent/leader/context.py": "agent/leader/test_leader.py",
    "torch/term_coordinator.py": "torch/test_failover.py",
}


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


def defines_a_function(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in ast.walk(tree))


def mirror_of(module: Path) -> Path:
    """Return where the tests of a module are: those of a package have its name."""
    if str(module) in TESTED_ELSEWHERE:
        return Path(TESTED_ELSEWHERE[str(module)])
    path = module.parent if module.stem == "__init__" else module
    return path.with_name("test_main.py" if module.stem == "__main__" else f"test_{path.stem}.py")


def test_every_module_with_a_function_has_a_test_file_of_its_name() -> None:
    modules = [path for path in sorted(PACKAGE.rglob("*.py")) if defines_a_function(path)]
    assert len(modules) > 200
    missing = {
        str(module)
        for module in (path.relative_to(PACKAGE) for path in modules)
        if not (TESTS / mirror_of(module)).exists()
    }
    assert missing == set()


def test_every_file_that_forks_the_tests_own_process_is_in_the_group_that_begins_before_ray_is_loaded() -> None:
    """A forked child of a process that has loaded Ray may crash in the handlers of Ray's libraries."""
    forking = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("test_*.py")
        if "tests.sandbox.forked" in imported_modules(path)
    }
    assert forking and forking == set(schedule.GROUPS["forked processes"])
    assert schedule.LONG[0] == "forked processes"
