"""Development packages have the versions of constraints.txt, or the newest ones where a Python cannot have those."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Records its words, and the constraints that it was given; fails with constraints if told to.
PIP = """#!/bin/bash
[ "$1" = --version ] && echo Python 3.99 && exit
echo "$@" >>words
[ "$6" = --constraint ] || exit 0
cat "$7" >constraints
[ ! -e fail ]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a Python whose pip installs nothing, and constraints of two packages."""
    (tmp_path / "python").write_text(PIP)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "constraints.txt").write_text("ray==2.60.0\nray-cpp==1.0\n")
    return tmp_path


def install(place: Path, *words: str) -> str:
    done = subprocess.run(
        [str(ROOT / ".ci" / "pip-install"), "./python", *words], cwd=place, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_packages_are_installed_with_the_recorded_versions(place: Path) -> None:
    assert install(place, "-e", ".[ray]") == ""
    assert (place / "words").read_text().splitlines()[0].endswith(" -e .[ray]")
    assert (place / "constraints").read_text() == (place / "constraints.txt").read_text()


def test_a_version_that_is_given_counts(place: Path) -> None:
    install(place, "ray==2.46.0")
    assert (place / "constraints").read_text() == "ray-cpp==1.0\n"


def test_without_recorded_versions_the_newest_are_installed(place: Path) -> None:
    (place / "constraints.txt").write_text("")
    assert install(place, "ray") == ""


def test_where_the_recorded_versions_cannot_be_installed_the_newest_are_and_a_message_says_so(place: Path) -> None:
    (place / "fail").touch()
    assert "cannot be installed for Python 3.99: installing the newest ones" in install(place, "ray")
    assert [" --constraint " in line for line in (place / "words").read_text().splitlines()] == [True, False]


def test_every_package_that_development_names_is_recorded_with_one_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)  # no local build, no address of an index
    names = [_normalized(line.partition("==")[0]) for line in lines]
    assert len(names) == len(set(names))
    project = (ROOT / "pyproject.toml").read_text()
    wanted = re.findall(r'^    "([\w-]+)(?:[><=].*)?",$', project.partition("[project.scripts]")[0], re.MULTILINE)
    assert len(wanted) > 12 and {_normalized(name) for name in wanted} <= set(names)


def _normalized(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()
