"""What people expect of a public project: packages with addresses, workflows of make targets, templates."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
REPOSITORY_URL = PROJECT["urls"]["Repository"]


def test_the_addresses_of_the_project_name_files_that_exist() -> None:
    assert {"Homepage", "Documentation", "Repository", "Issues", "Changelog"} <= PROJECT["urls"].keys()
    files = [url.partition("/blob/main/")[2] for url in PROJECT["urls"].values() if "/blob/" in url]
    assert len(files) == 2 and all((ROOT / file).is_file() for file in files)
    assert all(url.startswith(REPOSITORY_URL) for url in PROJECT["urls"].values())


def test_links_and_pictures_of_the_readme_are_addresses() -> None:
    """PyPI shows the README without the files beside it."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 20 and all(link.startswith("https://") for link in links)
    raw = REPOSITORY_URL.replace("github.com", "raw.githubusercontent.com") + "/main/"
    pictures = [link.removeprefix(raw) for link in links if "raw.githubusercontent" in link]
    assert pictures and all((ROOT / picture).is_file() for picture in pictures)


def test_the_readme_names_the_two_commands_of_a_checkout() -> None:
    text = (ROOT / "README.md").read_text()
    assert "\nmake demo " in text and "\nmake test " in text


def test_classifiers_name_the_pythons_from_the_oldest_supported_one() -> None:
    versions = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert PROJECT["requires-python"] == f">={versions[0]}"


def steps() -> list[str]:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_the_workflow_runs_nothing_but_make_targets_that_exist() -> None:
    targets = {command.partition("make ")[2] for command in steps()}
    assert targets >= {"test", "docs", "dist", "test-all"}
    assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_templates_and_workflows_are_valid_yaml(path: Path) -> None:
    assert yaml.safe_load(path.read_text())


def test_hooks_run_tools_of_make_lint() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    programs = {Path(hook["entry"].split()[0]).name for hook in repository["hooks"]} - {"python"}
    assert programs >= {"ruff", "mypy", "lint-imports"}
    assert all(f"/{program}" in MAKEFILE for program in programs)


def test_what_make_dist_packs_exists() -> None:
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"][
        "include"
    ]
    assert [path for path in packed if not (ROOT / path.lstrip("/")).exists()] == []


def test_the_quick_start_that_make_dist_runs_is_in_the_readme() -> None:
    (command,) = re.findall(r"^sed -n .*\n.*-start\"$", (ROOT / ".ci" / "dist").read_text(), re.MULTILINE)
    command = command.replace('"$root/README.md"', str(ROOT / "README.md")).partition(" >")[0]
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    assert [("local" in line, "--dry-run" in line) for line in found.splitlines()] == [(True, False), (False, True)]


CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # of Keep a Changelog


def test_the_changelog_has_a_section_for_unreleased_changes_and_for_the_version() -> None:
    sections = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert sections[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", section) for section in sections[1:])
    assert f"[{PROJECT['version']}]" in sections[1]


def test_changes_are_of_the_kinds_of_keep_a_changelog() -> None:
    assert set(re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE)) <= KINDS


def test_links_of_the_changelog_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", CHANGELOG)
    named = re.findall(r"\bdocs/[\w/-]+\.md\b", CHANGELOG)
    assert len(named) > 10
    assert [link for link in (*links, *named) if not (ROOT / link).exists()] == []
