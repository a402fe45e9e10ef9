"""The package has a manual page for each command, with its options."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.reference.man_pages import MAN, escaped, man_pages

from muster.cli.main import COMMANDS
from muster.spec.flags import long_flag
from muster.spec.model import FLAGS

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PAGES = man_pages()


def test_every_command_has_a_page_and_there_is_no_other() -> None:
    assert PAGES.keys() == {"muster.1", *(f"muster-{name}.1" for name in COMMANDS)}
    assert {path.name for path in MAN.iterdir()} == PAGES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    assert (MAN / name).read_text(encoding="utf-8") == PAGES[name], "run `python -m tests.docs.reference`"


def test_the_page_of_run_has_all_options() -> None:
    flags = [long_flag(name) for name, flag in FLAGS.items() if not (flag.argument or flag.file_only)]
    assert [flag for flag in flags if escaped(flag) not in PAGES["muster-run.1"]] == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
@pytest.mark.parametrize("name", ["muster.1", "muster-run.1", "muster-lab.1", "muster-torchrun.1"])
def test_a_page_is_shown_without_warnings(name: str) -> None:
    command = ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", str(MAN / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "" and "muster" in done.stdout


def test_the_wheel_installs_the_pages_where_man_looks() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["shared-data"] == {"man/man1": "share/man/man1"}
    assert "/man" in targets["sdist"]["include"]
