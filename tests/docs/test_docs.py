"""The documentation names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_leader_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_tests_that_limits_names_exist() -> None:
    named = re.findall(r"`((?:\w+)/test_\w+)`", (REPOSITORY / "docs/limits.md").read_text())
    assert len(named) > 20
    assert [name for name in named if not (REPOSITORY / "tests" / f"{name}.py").exists()] == []


def test_flags_that_the_guide_names_exist() -> None:
    from click.testing import CliRunner

    from muster.cli.lab import lab
    from muster.cli.main import COMMANDS, cli
    from muster.cli.sandbox import sandbox

    commands = [[name] for name in COMMANDS]
    commands += [["lab", name] for name in lab.commands] + [["sandbox", name] for name in sandbox.commands]
    known = "".join(CliRunner().invoke(cli, [*words, "--help"], terminal_width=200).output for words in commands)
    guide = (REPOSITORY / "docs/guide.md").read_text()
    ours = set(re.findall(r"`(--[a-z][a-z-]+)[ =`]", guide))
    others = {
        "--jobs",
        "--password",
        "--rocm",
        "--nvccli",
        "--write-fake",
        "--nv",
        "--no-home",
        "--home",
        "--time",
        "--requeue",
        "--no-requeue",
        "--overlap",
    }
    assert sorted(flag for flag in ours - others if flag not in known) == []
