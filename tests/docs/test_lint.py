"""`make lint` rejects imports against the rules, class names that are defined twice, and findings of shellcheck.

The rules for commit subjects are in test_commits.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


# Imports against the rules, each inside a function, with the contract that each one breaks.
BREACHES = [
    ("muster.rundir.paths", "muster.runs.stop", "Imports point downwards"),
    ("muster.process.scope", "muster.agent.node", "Imports point downwards"),
    ("muster.views.record", "muster.agent.node", "Only nodes import the agent"),
    ("muster.lifecycle.policy", "time", "The state machine and the election are pure"),
    ("muster.agent.node", "pydantic", "Packages for nodes use only the standard library"),
]
CYCLE = ("muster.agent.control.channel", "muster.agent.leader.leader", "No package takes part in an import cycle")


def copy_sources(directory: Path) -> Path:
    """Copy the sources with their dependency rules."""
    shutil.copytree(ROOT / "src", directory / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


def check_imports(directory: Path, breaches: list[tuple[str, str, str]]) -> str:
    """Return what import-linter says of sources with these breaches."""
    copy = copy_sources(directory)
    for module, imported, _ in breaches:
        path = copy / "src" / f"{module.replace('.', '/')}.py"
        path.write_text(f"{path.read_text()}\n\ndef _lazily() -> None:\n    import {imported}\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All breaches at once: building the graph of imports takes seconds."""
    return check_imports(tmp_path_factory.mktemp("breaches"), BREACHES)


@pytest.mark.parametrize(("module", "imported", "contract"), BREACHES)
def test_an_import_against_the_rules_is_rejected(report: str, module: str, imported: str, contract: str) -> None:
    assert f"{contract} BROKEN" in report, report
    section = re.split(r"\n(.+)\n-{9,}\n", report)
    breaches = section[section.index(contract) + 1]
    assert f"{module} -> {imported} (l." in breaches, report


def test_an_import_cycle_between_packages_is_rejected(tmp_path: Path) -> None:
    assert f"{CYCLE[2]} BROKEN" in check_imports(tmp_path, [CYCLE])


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
    return command.replace("$(BIN)", shlex.quote(str(Path(sys.executable).parent))).replace("$$", "$")


@pytest.mark.parametrize("program", [".ci/commit-subjects", ".ci/class-names", "lint-imports", "shellcheck"])
def test_make_lint_runs_each_check_and_does_not_ignore_its_failure(program: str) -> None:
    command = recipe("lint", program)
    assert not command.lstrip("@").startswith("-") and "|| true" not in command


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="shellcheck is not installed")
def test_a_finding_of_shellcheck_in_a_template_is_rejected(tmp_path: Path) -> None:
    copy = copy_sources(tmp_path)
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
