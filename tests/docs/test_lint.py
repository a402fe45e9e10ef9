"""`make lint` rejects imports against the rules, class names that are defined twice, and findings of shellcheck.

The rules for commit subjects are in test_commits.py.
"""

from __future__ import annotations

import os
import re
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


SHELLCHECK = Path(sys.executable).with_name("shellcheck")
TEMPLATE = Path("src", "muster", "launch", "templates", "requeue.sh")


def recipe(target: str, program: str) -> str:
    """Return the command of a target in the Makefile that runs this program, as `make` passes it to the shell."""
    makefile = (ROOT / "Makefile").read_text()
    (rules,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    (command,) = [line.strip() for line in rules.splitlines() if program in line]
    return command.replace("$(BIN)", str(Path(sys.executable).parent)).replace("$$", "$")


@pytest.mark.parametrize("program", [".ci/commit-subjects", ".ci/class-names", "lint-imports", "shellcheck"])
def test_make_lint_runs_each_check_and_does_not_ignore_its_failure(program: str) -> None:
    command = recipe("lint", program)
    assert not command.lstrip("@").startswith("-") and "|| true" not in command


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="shellcheck is not installed")
def test_a_finding_of_shellcheck_in_a_template_is_rejected(copy: Path) -> None:
    shutil.copytree(ROOT / ".ci", copy / ".ci")
    for directory in ("bench", "examples", "tests"):  # empty: the golden scripts of the tests would take long
        (copy / directory).mkdir()
    command = ["bash", "-c", recipe("lint", "/shellcheck")]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    template = copy / TEMPLATE
    template.write_text(f"{template.read_text()}\nrm -rf $unquoted\n")
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 1 and "SC2086" in done.stdout and f"{TEMPLATE} line" in done.stdout, done.stdout
