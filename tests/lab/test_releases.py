"""A lab gets the installed Slurm of a release, a cached one, or one that is built on demand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand

from muster.lab import LabError, LabUnavailable, release_build, releases, requirements

LAB = {"nodes": 2}


def slurm_in(directory: Path, version: str) -> None:
    directory.mkdir(parents=True)
    (directory / "slurmctld").write_text(f"#!/bin/sh\necho slurm-wlm {version}\n")
    (directory / "slurmctld").chmod(0o755)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of built releases, empty; Slurm 22.05 is installed, and this user is root."""
    slurm_in(tmp_path / "system", "22.05.8")
    monkeypatch.setattr(requirements, "SYSTEM_PATH", str(tmp_path / "system"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("MUSTER_SLURM_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The suites that were built from; each build gives Slurm 26.05.5."""
    built: list[str] = []

    def build(suite: str, prefix: Path, report: release_build.Report) -> None:
        built.append(suite)
        slurm_in(prefix / "bin", "26.05.5")

    monkeypatch.setattr(release_build, "build", build)
    return built


def test_the_installed_release_needs_no_prefix(cache: Path, suites: list[str]) -> None:
    assert releases.version_of(None) == "22.05.8"
    assert releases.provide("installed", print) is None
    assert releases.provide("22.05", print) is None and suites == [] and not cache.exists()


def test_another_release_is_built_once_and_cached(cache: Path, suites: list[str]) -> None:
    messages: list[str] = []
    for _ in range(2):
        assert releases.provide("26.05", messages.append) == cache / "26.05"
    assert suites == ["sid"] and len(messages) == 1 and "building Slurm 26.05 from Debian sid" in messages[0]
    assert releases.version_of(cache / "26.05") == "26.05.5"


def test_an_ordinary_user_may_use_a_cached_release_and_build_none(
    cache: Path, suites: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    releases.provide("26.05", print)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert releases.provide("26.05", print) == cache / "26.05"
    with pytest.raises(LabUnavailable, match="root"):
        releases.provide("24.11", print)
    assert suites == ["sid"]


def test_a_suite_that_has_another_release_by_now_is_reported(cache: Path, suites: list[str]) -> None:
    with pytest.raises(LabError, match=r"Debian trixie has Slurm 26\.05\.5, not 24\.11"):
        releases.provide("24.11", print)


def test_a_release_that_no_suite_has_is_refused_with_those_that_there_are(cache: Path, suites: list[str]) -> None:
    with pytest.raises(LabError, match=r"choose one of 22\.05 \(installed\), 24\.11, 26\.05"):
        releases.provide("20.11", print)


def test_without_an_installed_slurm_there_are_the_others(
    cache: Path, suites: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "SYSTEM_PATH", "/nonexistent")
    assert releases.version_of(None) is None
    assert releases.provide("26.05", print) == cache / "26.05"
    with pytest.raises(LabError, match=r"choose one of 24\.11, 26\.05"):
        releases.provide("22.05", print)


def test_commands_and_daemons_of_a_lab_are_of_its_release(slurm: SlurmCommand) -> None:
    version = slurm.lab.status().slurm_version
    assert version == releases.version_of(slurm.lab.plan.slurm_prefix)
    assert slurm.slurm("srun", "--version").stdout.split()[-1] == version
    assert slurm.on_node("n1", "srun", "--version").stdout.split()[-1] == version
    config = slurm.slurm("scontrol", "show", "config").stdout
    assert f"SLURM_VERSION           = {version}\n" in config
    node = slurm.slurm("scontrol", "show", "node", "n2").stdout
    assert f"Version={version}" in node
    inside = slurm.slurm("srun", "-N2", "-l", "sh", "-c", "srun --version; cat /proc/$PPID/comm").stdout.splitlines()
    assert [line for line in inside if version in line] and len(inside) == 4
