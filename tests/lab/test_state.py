"""The state directory of a lab can be claimed once, and its files are written and read back."""

from __future__ import annotations

import dataclasses
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.lab import LabError, state
from muster.lab.plan import LabPlan
from muster.lab.process import ProcessId
from muster.lab.users import LabUser


@pytest.fixture
def plan() -> Iterator[LabPlan]:
    """A lab of two nodes whose state directory, which must have a short path, does not exist yet."""
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp") as directory:
        yield LabPlan(nodes=2, proctrack="pgid", state_dir=Path(directory, "state"), extra_conf=("MaxArraySize=5",))


def own_process() -> ProcessId:
    found = ProcessId.find(os.getpid())
    assert found is not None
    return found


def test_a_saved_lab_is_loaded_as_it_was(plan: LabPlan) -> None:
    machines = {"labctl": ProcessId(7, 70), "n1": ProcessId(8, 80)}
    state.claim(plan)
    assert state.load(plan.state_dir) == (plan, {})
    state.save(plan, machines)
    assert state.load(plan.state_dir) == (plan, machines)
    assert [path.name for path in plan.state_dir.iterdir()] == ["lab.json"]


def test_a_directory_without_a_state_file_has_no_lab(plan: LabPlan) -> None:
    assert state.load(plan.state_dir) is None


def test_a_damaged_state_file_is_reported_with_its_path(plan: LabPlan) -> None:
    plan.state_dir.mkdir()
    plan.state_file.write_text('{"plan": ')
    with pytest.raises(LabError, match=r"state/lab\.json is not readable as a lab's state"):
        state.load(plan.state_dir)


def test_of_two_claims_one_succeeds(plan: LabPlan) -> None:
    state.claim(plan)
    with pytest.raises(LabError, match="another lab is starting in"):
        state.claim(plan)


def test_a_missing_or_empty_directory_may_be_claimed(plan: LabPlan) -> None:
    state.check_unclaimed(plan)
    plan.state_dir.mkdir()
    state.check_unclaimed(plan)


@pytest.mark.parametrize("kind", ["file", "directory with a file"])
def test_other_contents_are_refused(plan: LabPlan, kind: str) -> None:
    if kind == "file":
        plan.state_dir.touch()
    else:
        plan.state_dir.mkdir()
        (plan.state_dir / "thesis.tex").touch()
    with pytest.raises(LabError, match="is not empty; set MUSTER_LAB_DIR to another"):
        state.check_unclaimed(plan)


def test_a_lab_that_is_up_is_told_from_one_that_was_left_behind(plan: LabPlan) -> None:
    state.claim(plan)
    own = own_process()
    state.save(plan, {"n1": ProcessId(own.pid, own.started + 1), "n2": own})
    with pytest.raises(LabError, match="a lab is already up in"):
        state.check_unclaimed(plan)
    state.save(plan, {"n1": ProcessId(own.pid, own.started + 1)})
    with pytest.raises(LabError, match=r"no longer runs left .* behind; `muster lab down` removes it"):
        state.check_unclaimed(plan)


def test_a_topology_is_written_where_slurm_looks_for_it(plan: LabPlan) -> None:
    state.write_files(dataclasses.replace(plan, topology=("SwitchName=a Nodes=n1", "SwitchName=b Switches=a")))
    assert (plan.etc_dir / "topology.conf").read_text() == "SwitchName=a Nodes=n1\nSwitchName=b Switches=a\n"


def test_all_files_of_the_machines_are_written(plan: LabPlan) -> None:
    state.claim(plan)
    state.write_files(plan)
    assert sorted(path.name for path in plan.etc_dir.iterdir()) == ["gres.conf", "resolv.conf", "slurm.conf"]
    assert "MaxArraySize=5\n" in plan.slurm_conf.read_text()
    assert sorted(path.name for path in plan.spool_dir.iterdir()) == ["ctl", "n1", "n2"]
    assert sorted(path.name for path in plan.boot_dir.iterdir()) == ["labctl.hosts", "n1.hosts", "n2.hosts"]
    assert sorted(path.name for path in plan.gres_dir.iterdir()) == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert all(path.is_dir() for path in (plan.log_dir, plan.stage_dir, plan.shared_dir))


def test_the_munge_key_is_random_and_readable_only_by_its_owner(plan: LabPlan) -> None:
    state.claim(plan)
    state.write_files(plan)
    key = plan.munge_dir / "key"
    assert len(key.read_bytes()) == 1024 and len(set(key.read_bytes())) > 100
    assert stat.S_IMODE(key.stat().st_mode) == 0o400


def test_only_a_lab_with_cgroups_configures_them(plan: LabPlan) -> None:
    with_cgroups = LabPlan(nodes=1, proctrack="cgroup", state_dir=plan.state_dir)
    state.claim(with_cgroups)
    state.write_files(with_cgroups)
    assert (plan.etc_dir / "cgroup.conf").exists()


def test_where_devices_cannot_be_created_gpus_are_plain_files(plan: LabPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", refuse)
    state.claim(plan)
    state.write_files(plan)
    assert (plan.gres_dir / "gpu3").is_file()


def test_users_get_a_private_home_an_account_and_a_place_to_share(plan: LabPlan) -> None:
    user = LabUser("alice", os.getuid())  # a change of owner needs root
    with_users = dataclasses.replace(plan, users=(user,))
    state.claim(with_users)
    state.write_files(with_users)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (plan.homes_dir, plan.home(user), plan.shared_dir)}
    assert modes == {plan.homes_dir: 0o755, plan.home(user): 0o700, plan.shared_dir: 0o1777}
    assert f"alice:x:{user.uid}:{user.uid}::{plan.home(user)}:/bin/bash\n" in (plan.etc_dir / "passwd").read_text()
    assert f"alice:x:{user.uid}:\n" in (plan.etc_dir / "group").read_text()
