"""Each requirement of a lab that this machine does not meet is reported with a remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.lab import LabUnavailable, cgroup, requirements
from muster.lab.plan import LabPlan

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "ip", "tini", "unshare", "nsenter", "setpriv")
PLAN = LabPlan(nodes=1, proctrack="pgid")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with all programs that a lab needs, in place of the system's; and this user is root."""
    for name in PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(requirements, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_a_machine_with_everything_passes(programs: Path) -> None:
    requirements.check(PLAN)
    assert requirements.missing_packages() == []


def test_without_root_no_lab_can_run(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabUnavailable, match=r"a lab needs root .*: run it with sudo"):
        requirements.check(PLAN)


def test_missing_programs_are_reported_as_packages_each_once(programs: Path) -> None:
    for name in ("tini", "slurmd", "slurmctld"):
        (programs / name).unlink()
    assert requirements.missing_packages() == ["slurm-wlm", "tini"]
    with pytest.raises(LabUnavailable, match="apt-get install slurm-wlm tini"):
        requirements.check(PLAN)


def test_a_release_in_a_prefix_comes_before_the_installed_one_and_makes_its_package_unnecessary(
    programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prefix = tmp_path_factory.mktemp("prefix")
    (prefix / "bin").mkdir()
    for name in ("slurmctld", "slurmd", "srun"):
        (programs / name).rename(prefix / "bin" / name)
    plan = LabPlan(nodes=1, proctrack="pgid", slurm_prefix=prefix)
    assert requirements.search_path(plan) == f"{prefix}/bin:{programs}"
    assert requirements.search_path(PLAN) == str(programs)
    requirements.check(plan)
    with pytest.raises(LabUnavailable, match="apt-get install slurm-wlm"):
        requirements.check(PLAN)


def test_only_a_lab_that_tracks_with_cgroups_needs_the_freezer(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "FREEZER", programs / "none")
    requirements.check(PLAN)
    with pytest.raises(LabUnavailable, match="use --proctrack pgid"):
        requirements.check(LabPlan(nodes=1, proctrack="cgroup"))


def test_only_an_ipv6_lab_needs_ipv6(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/proc/net/if_inet6" and exists(path))
    requirements.check(PLAN)
    with pytest.raises(LabUnavailable, match="no IPv6"):
        requirements.check(LabPlan(nodes=1, proctrack="pgid", ipv6=True))
