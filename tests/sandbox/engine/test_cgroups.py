"""Cgroups of workers: limits, kills for lack of memory, and their removal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.sandbox.engine import cgroups
from muster.sandbox.engine.cgroups import CPU_WEIGHTS, WORKER_OVERHEAD_MB, WorkerCgroup


def test_a_kill_for_lack_of_memory_is_reported_once(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 5\noom_kill 2\n")
    group = WorkerCgroup([str(tmp_path)], str(tmp_path), "memory.events", "memory.current")
    assert not group.has_oom_killed()  # those were before
    events.write_text("low 0\noom 6\noom_kill 3\n")
    assert [group.has_oom_killed() for _ in range(2)] == [True, False]
    events.write_text("low 0\n")
    assert not group.has_oom_killed()
    group.close()
    assert not group.has_oom_killed()


def test_a_group_is_removed_when_it_is_empty_and_given_up_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "REMOVAL_TIMEOUT_S", 0.02)
    (tmp_path / "empty").mkdir()
    (tmp_path / "used" / "process").mkdir(parents=True)
    cgroups.remove([str(tmp_path / "missing"), str(tmp_path / "empty"), str(tmp_path / "used")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["used"]


def test_without_a_controller_for_cpus_memory_and_processes_are_limited_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mounts = [(path, options) for path, options in cgroups._mounts("cgroup") if "cpu" not in options]
    monkeypatch.setattr(cgroups, "_mounts", lambda kind: mounts if kind == "cgroup" else [])
    parent = cgroups.find_parent() if os.getuid() == 0 else None
    if parent is None:
        pytest.skip("no cgroups of version 1 can be created here")
    assert set(parent.directories) == {"memory", "pids"}
    cgroups.remove_parent(parent)


def test_where_no_group_can_be_made_there_is_no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_mounts", lambda kind: [])
    assert cgroups.find_parent() is None


def test_a_parent_that_cannot_hold_groups_is_removed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is an ordinary directory: it takes files of any name, and so the group cannot be removed by rmdir."""
    monkeypatch.setattr(cgroups, "REMOVAL_TIMEOUT_S", 0.02)

    def version_1() -> cgroups.ParentCgroup:
        (tmp_path / "parent").mkdir()
        return cgroups.ParentCgroup({"memory": str(tmp_path / "parent"), "pids": str(tmp_path / "parent")}, 1)

    def refuse(path: str, value: object) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(cgroups, "_version_1", version_1)
    monkeypatch.setattr(cgroups, "_mounts", lambda kind: [])
    monkeypatch.setattr(cgroups, "_write", refuse)
    assert cgroups.find_parent() is None
    assert not (tmp_path / "parent").exists()


def test_a_worker_s_group_has_the_limits_of_its_programs_and_room_for_itself() -> None:
    parent = cgroups.find_parent() if os.getuid() == 0 else None
    if parent is None:
        pytest.skip("no cgroups can be created here")
    try:
        group = cgroups.make(parent, "worker-7", 100, 10)
        limit = "memory.limit_in_bytes" if parent.version == 1 else "memory.max"
        memory = Path(parent.directories["memory"], "worker-7", limit).read_text()
        assert memory == f"{100 + WORKER_OVERHEAD_MB << 20}\n"
        assert Path(parent.directories["pids"], "worker-7", "pids.max").read_text() == "12\n"
        if "cpu" in parent.directories:
            name, weight, largest = CPU_WEIGHTS[parent.version]
            shares = Path(parent.directories["cpu"], name).read_text()
            assert shares == f"{min(largest, weight * (os.cpu_count() or 1))}\n"
            assert Path(parent.directories["cpu"], "worker-7", name).read_text() == f"{weight}\n"
        assert not group.has_oom_killed()
        group.close()
        cgroups.remove(group.directories)
        assert not any(map(os.path.exists, group.directories))
    finally:
        cgroups.remove_parent(parent)
    assert not any(map(os.path.exists, parent.directories.values()))


KILLED_SERVER = """
import os, signal
from muster.sandbox.engine import cgroups
parent = cgroups.find_parent()
cgroups.make(parent, "worker-1", 64, 8)
print(*parent.directories.values(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_groups_of_a_killed_server_are_removed_by_the_next_one() -> None:
    parent = cgroups.find_parent() if os.getuid() == 0 else None
    if parent is None:
        pytest.skip("no cgroups can be created here")
    done = subprocess.run([sys.executable, "-c", KILLED_SERVER], capture_output=True, text=True, timeout=120)
    left = done.stdout.split()
    assert len(left) == len(parent.directories) and all(map(os.path.exists, left)), done.stderr
    for directory in left:
        os.utime(directory, (0, 0))
    for directory in parent.directories.values():
        os.utime(directory, (0, 0))  # its age does not matter: its server lives
    other = cgroups.find_parent()
    assert other is not None
    assert not any(map(os.path.exists, left))
    assert all(map(os.path.exists, parent.directories.values()))
    cgroups.remove_parent(other)
    cgroups.remove_parent(parent)
