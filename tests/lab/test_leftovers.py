"""Muster finds the processes, mounts, cgroups and state directory that a lab left on this host."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.running import wait_for

from muster.lab import cgroup, leftovers, state
from muster.lab.plan import LabPlan


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabPlan]:
    """A lab whose state directory, which must have a short path, does not exist; and no cgroups."""
    monkeypatch.setattr(cgroup, "FREEZER", tmp_path / "freezer")
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp") as directory:
        yield LabPlan(nodes=1, state_dir=Path(directory, "state"))


def test_where_no_lab_was_nothing_is_found(plan: LabPlan) -> None:
    assert leftovers.find(plan) == []


def test_the_state_directory_and_the_cgroup_of_a_lab_are_found(plan: LabPlan) -> None:
    state.claim(plan)
    cgroup.make(cgroup.root(plan))
    assert leftovers.find(plan) == [f"cgroup {cgroup.root(plan)}", f"state directory {plan.state_dir}"]


def test_slurm_commands_that_use_the_lab_are_found_and_no_others(plan: LabPlan, tmp_path: Path) -> None:
    for name in ("srun", "other"):
        shutil.copy(shutil.which("sleep") or "", tmp_path / name)
    ours, elsewhere = {"SLURM_CONF": str(plan.slurm_conf)}, {"SLURM_CONF": f"{plan.slurm_conf}.old"}
    started = [
        subprocess.Popen([str(tmp_path / name), "1000"], env={**os.environ, **env})
        for name, env in [("srun", ours), ("srun", elsewhere), ("srun", {}), ("other", ours)]
    ]
    try:
        comms = [Path(f"/proc/{one.pid}/comm") for one in started]
        wait_for("the programs", lambda: [comm.read_text() for comm in comms] == ["srun\n"] * 3 + ["other\n"])
        assert [one.pid for one in leftovers.clients(plan)] == [started[0].pid]
        assert leftovers.find(plan) == [f"process {started[0].pid} (srun) still uses the lab"]
    finally:
        for one in started:
            one.kill()
            one.wait(120)
    assert leftovers.clients(plan) == []


def test_processes_in_a_machine_are_recognized_by_the_mark_on_its_mounts(
    plan: LabPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = {
        os.getpid(): f"30 20 0:40 / /tmp rw - tmpfs {plan.mark} rw\n",
        os.getppid(): f"30 20 0:40 / /tmp rw - tmpfs {plan.mark}0 rw\n",  # another lab's
    }
    real = leftovers.read_proc_file

    def read(path: str) -> str:
        pid = path.split("/")[2]
        if path.endswith("/mountinfo"):
            return mounts.get(int(pid), "") if pid.isdecimal() else ""
        return real(path)

    monkeypatch.setattr(leftovers, "read_proc_file", read)
    assert [one.pid for one in leftovers.machine_processes(plan)] == [os.getpid()]
    (line,) = leftovers.find(plan)
    assert line.startswith(f"process {os.getpid()} (") and line.endswith(") in a machine of the lab")


def test_mounts_in_the_state_directory_are_found(plan: LabPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    real, inside = leftovers.read_proc_file, plan.state_dir / "stage"
    lines = [f"30 20 0:40 / {place} rw - tmpfs x rw" for place in ("/", inside, f"{plan.state_dir}-other")]
    own = "/proc/self/mountinfo"
    monkeypatch.setattr(leftovers, "read_proc_file", lambda path: "\n".join(lines) if path == own else real(path))
    assert leftovers.find(plan) == [f"mount {inside}"]
