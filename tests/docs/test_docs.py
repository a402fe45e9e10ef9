"""The documentation names what exists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
MAX_WORDS = 2000  # of a page that is not a reference
REPOSITORY_URL = "https://github.com/raymuster/raymuster"
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "tests/README.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "examples").rglob("*.md")),
]


def identify(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_links_to_the_repository_name_files_that_exist(page: Path) -> None:
    """Pages of the site, and the README on PyPI, link to other files of the repository by address."""
    links = re.findall(rf"{REPOSITORY_URL}/(blob|tree)/main/([^)#\s]+)", page.read_text())
    kinds = {"blob": Path.is_file, "tree": Path.is_dir}
    assert [path for kind, path in links if not kinds[kind](REPOSITORY / path)] == []


def pages_of(navigation: object) -> list[str]:
    """Return the pages of the site's navigation, in order."""
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    assert isinstance(parts, Iterable)
    return [page for part in parts for page in pages_of(part)]


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    named = pages_of(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"])
    docs = REPOSITORY / "docs"
    assert sorted(named) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))


def test_the_tests_that_pages_name_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())}
    assert len(named) > 15
    assert [name for name in sorted(named) if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_no_page_except_references_is_long(page: Path) -> None:
    if "reference" not in page.parts and page.name != "CHANGELOG.md":
        assert len(page.read_text().split()) <= MAX_WORDS


def test_no_indented_code_confuses_the_site() -> None:
    """Every fence that is opened is closed: what follows would be code."""
    assert [identify(page) for page in PAGES if page.read_text().count("```") % 2] == []


def options_of_muster() -> str:
    from click.testing import CliRunner

    from muster.cli.lab import lab
    from muster.cli.main import COMMANDS, cli
    from muster.cli.sandbox import sandbox

    commands = [[name] for name in COMMANDS]
    commands += [["lab", name] for name in lab.commands] + [["sandbox", name] for name in sandbox.commands]
    # --help-all: of the commands whose --help leaves out options; for the others it is unknown, and prints one line.
    asked = [[*words, flag] for words in commands for flag in ("--help", "--help-all")]
    return "".join(CliRunner().invoke(cli, words, terminal_width=200).output for words in asked)


# Options of other programs in the guides: sbatch, srun, Ray, container runtimes, torchrun, ft_launcher, Prometheus.
OTHERS = {
    "--address",
    "--command",
    "--dashboard-port",
    "--exp-name",
    "--ft-initial-rank-heartbeat-timeout",
    "--ft-rank-heartbeat-timeout",
    "--ft-segment",
    "--home",
    "--include-dashboard",
    "--labels",
    "--load-env",
    "--log-dir",
    "--min-nodes",
    "--mpi",
    "--no-container-mount-home",
    "--no-home",
    "--no-requeue",
    "--num-cpus",
    "--num-gpus",
    "--num-nodes",
    "--nvccli",
    "--password",
    "--ray-debugger-external",
    "--redis-password",
    "--resources",
    "--rocm",
    "--temp-dir",
    "--write-fake",
}


def test_options_that_the_guides_name_exist() -> None:
    known = options_of_muster()
    guides = [page for page in PAGES if "how-to" in page.parts or "tutorials" in page.parts or page.name == "README.md"]
    named = {flag for page in guides for flag in re.findall(r"`(--[a-z][a-z-]+)[ =`]", page.read_text())}
    assert len(named) > 60
    assert sorted(flag for flag in named - OTHERS if flag not in known) == []


# Phrases that readers have stumbled over, and sentences that have Who or What as their subject.
PUZZLING = re.compile(
    r"\b(of (its|their|one's) own|who(so)?ever|(no|some|any|every)body|whom|lies?|stands?|stood|alone|anew|upon"
    r"|(is|are) told|(refused|ends?|fails?) by name|goes by|gives? way|a matter of|hitherto"
    r"|(there|where)(of|in|upon|by)|whence)\b"
    r"|(?-i:(^|^- |\. )(Who|What) [a-z]+ (?![^.\n]*\?))",
    re.I | re.M,
)


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_pages_are_in_plain_english(page: Path) -> None:
    assert [found[0] for found in PUZZLING.finditer(page.read_text())] == []


@pytest.mark.parametrize("text", ["It has a port of its own.", "Whoever asks is told.", "x. What is left is removed."])
def test_a_puzzling_phrase_would_be_found(text: str) -> None:
    assert PUZZLING.search(text)


def test_questions_and_headings_are_plain_english() -> None:
    assert not PUZZLING.search("## What the sandbox stops\n\nAn isolated worker. What is a term?")
