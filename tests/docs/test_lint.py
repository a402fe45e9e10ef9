"""`make lint` rejects imports against the dependency rules and class names that are defined twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources with their dependency rules."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def check_imports(copy: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "COLUMNS": "200"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)


def add(copy: Path, module: str, line: str) -> None:
    path = copy / "src" / f"{module.replace('.', '/')}.py"
    path.write_text(f"{path.read_text()}\n\ndef _lazily() -> None:\n    {line}\n")


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("muster.rundir.paths", "import muster.runs.stop", "Imports point downwards"),
        ("muster.process.scope", "import muster.agent.node", "Imports point downwards"),
        ("muster.views.record", "import muster.agent.node", "Only nodes import the agent"),
        (
            "muster.agent.control.channel",
            "import muster.agent.leader.leader",
            "No package takes part in an import cycle",
        ),
        ("muster.lifecycle.policy", "import time", "The state machine and the election are pure"),
        ("muster.agent.node", "import pydantic", "Packages for nodes use only the standard library"),
    ],
)
def test_an_import_against_the_rules_is_rejected(copy: Path, module: str, line: str, contract: str) -> None:
    add(copy, module, line)
    done = check_imports(copy)
    assert done.returncode == 1 and f"{contract} BROKEN" in done.stdout, done.stdout


def check_class_names(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / ".ci" / "class-names", directory], capture_output=True, text=True)


def test_a_class_name_that_is_defined_twice_is_rejected_with_both_places(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Lease:\n    pass\n\n\nclass _Private:\n    pass\n")
    (tmp_path / "two.py").write_text("class Session:\n    pass\n\n\nclass _Private:\n    pass\n")
    assert check_class_names(tmp_path).returncode == 0
    (tmp_path / "three.py").write_text("\nclass Lease:\n    pass\n")
    done = check_class_names(tmp_path)
    assert done.returncode == 1
    assert "class Lease is defined 2 times" in done.stderr and "one.py:1" in done.stderr and "three.py:2" in done.stderr
