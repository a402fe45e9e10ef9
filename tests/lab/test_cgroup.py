"""The cgroups of the nodes have the expected paths and are removed when their processes are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.lab import LabError, LabUnavailable, cgroup
from muster.lab.plan import LabPlan

PLAN = LabPlan(nodes=2, proctrack="cgroup")


@pytest.fixture
def freezer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plain directories in place of the freezer: one with files cannot be removed, like a cgroup with processes."""
    monkeypatch.setattr(cgroup, "FREEZER", tmp_path)
    (tmp_path / "cgroup.procs").touch()
    return tmp_path


def test_a_machine_has_a_cgroup_of_its_own_only_if_the_lab_uses_them(freezer: Path) -> None:
    assert cgroup.root(PLAN) == freezer / "muster-lab0"
    assert cgroup.of_machine(PLAN, "n2") == freezer / "muster-lab0" / "n2"
    assert cgroup.of_machine(LabPlan(nodes=2, proctrack="pgid"), "n2") is None


def test_a_machine_without_a_freezer_cannot_track_with_cgroups(freezer: Path) -> None:
    cgroup.check_available()
    (freezer / "cgroup.procs").unlink()
    with pytest.raises(LabUnavailable, match="use --proctrack pgid"):
        cgroup.check_available()


def test_a_cgroup_is_removed_with_its_children(freezer: Path) -> None:
    cgroup.make(freezer / "lab" / "n1" / "step_0")
    cgroup.make(freezer / "lab" / "n2")
    cgroup.make(freezer / "lab" / "n2")  # a healed node has one already
    cgroup.remove(freezer / "lab")
    assert not (freezer / "lab").exists()
    cgroup.remove(freezer / "lab")


def test_removal_waits_for_processes_that_are_still_ending(freezer: Path) -> None:
    cgroup.make(freezer / "lab" / "n1")
    (freezer / "lab" / "n1" / "tasks").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroup.time, "sleep", lambda seconds: (freezer / "lab" / "n1" / "tasks").unlink())
        cgroup.remove(freezer / "lab", deadline_s=120)
    assert not (freezer / "lab").exists()


def test_a_cgroup_that_stays_is_thawed_and_reported_with_its_processes(freezer: Path) -> None:
    cgroup.make(freezer / "lab" / "n1")
    (freezer / "lab" / "n1" / "cgroup.procs").write_text("12\n34\n")
    (freezer / "lab" / "n1" / "freezer.state").write_text("FROZEN")
    with pytest.raises(LabError, match=r"lab/n1 still has processes \['12', '34'\]"):
        cgroup.remove(freezer / "lab", deadline_s=-1)
    assert (freezer / "lab" / "n1" / "freezer.state").read_text() == "THAWED"
