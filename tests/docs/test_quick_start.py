"""The README's quick start works with what is installed: the wheel has everything that it names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def quick_start() -> str:
    (block,) = re.findall(r"^## Sixty seconds\n(.*?)^## ", (REPOSITORY / "README.md").read_text(), re.M | re.S)
    return block


def lines_of_code(text: str) -> Iterator[str]:
    """Indented or fenced ones, without remarks."""
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield re.sub(r"(^|\s+)#.*", "", line).strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel in it; what Muster needs is taken from this one's."""
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(REPOSITORY)]
    subprocess.run(build, check=True, timeout=240)
    (wheel,) = place.glob("raymuster-*.whl")
    fresh = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True, timeout=240)
    (site,) = fresh.glob("lib/python*/site-packages")
    # Not a site directory, so that its own .pth files, the checkout's among them, have no effect.
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [*pip, "--python", str(fresh / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True,
        timeout=240,
    )
    return fresh


def run(installed: Path, cwd: Path, line: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = f"{installed / 'bin'}:{env['PATH']}"
    return subprocess.run(["bash", "-c", line], cwd=cwd, env=env, capture_output=True, text=True, timeout=240)


def test_the_installed_wheel_is_what_is_tried(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "python -c 'import muster, click; print(muster.__file__)'")
    assert Path(done.stdout.strip()).is_relative_to(installed), done.stderr


def test_the_wheel_brings_manual_pages(installed: Path) -> None:
    pages = {path.name for path in (installed / "share" / "man" / "man1").iterdir()}
    assert {"muster.1", "muster-run.1"} <= pages


@pytest.mark.ray
def test_the_first_command_runs_three_nodes_on_this_machine(installed: Path, tmp_path: Path) -> None:
    (line,) = [line for line in lines_of_code(quick_start()) if "--backend local" in line]
    done = run(installed, tmp_path, line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("3 nodes"), done.stdout


def test_the_script_is_shown_without_a_job(installed: Path, tmp_path: Path) -> None:
    (line,) = [line for line in lines_of_code(quick_start()) if "--dry-run" in line]
    done = run(installed, tmp_path, line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n")


def test_every_command_of_the_quick_start_is_there(installed: Path, tmp_path: Path) -> None:
    named = set(re.findall(r"^muster ([a-z]+)", quick_start(), re.M))
    assert len(named) > 10
    offered = run(installed, tmp_path, "muster --help").stdout
    assert [name for name in sorted(named) if not re.search(rf"^  {name}\b", offered, re.M)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_no_command_of_the_documentation_needs_a_file_of_the_checkout(page: Path) -> None:
    for line in lines_of_code(page.read_text()):
        if "muster run" in line:
            try:
                words = shlex.split(line)
            except ValueError:  # of several lines
                words = line.split()
            assert [word for word in words if (REPOSITORY / word).is_file()] == [], line
