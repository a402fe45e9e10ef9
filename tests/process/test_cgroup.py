"""The control group of a scope, where one may be created; everything works without it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.running import wait_for

from muster.process import Scope
from muster.process import cgroup as module
from muster.process.cgroup import (
    SCOPE_PREFIX,
    Cgroup,
    group_name,
    lock_group,
    make_cgroup,
    may_have_children,
    oom_counter,
    oom_kills,
    own_directory,
    remove_stale_groups,
)

if TYPE_CHECKING:
    from tests.process.conftest import Words


@pytest.fixture
def allowed() -> None:
    probe = make_cgroup(uuid.uuid4().hex)
    if probe.directory is None:
        pytest.skip("no control group of version 2 may be made here")
    probe.remove()


@pytest.mark.usefixtures("allowed")
async def test_processes_of_the_scope_are_in_its_group_which_is_removed_with_it(words: Words) -> None:
    async with Scope("test", cgroup=True) as scope:
        process = await scope.spawn(["sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=words.fd)
        escaped = await words.pid()
        inside = Path(scope.cgroup.directory, "cgroup.procs").read_text().split()
        assert {str(process.pid), str(escaped)} <= set(inside) and str(scope.supervisor_pid) not in inside
    assert not os.path.exists(scope.cgroup.directory)


@pytest.mark.usefixtures("allowed")
async def test_one_write_to_cgroup_kill_ends_all_its_processes(words: Words) -> None:
    async with Scope("test", cgroup=True) as scope:
        process = await scope.spawn(["sh", "-c", "setsid sleep 1000 & echo; wait"], stdout=words.fd)
        assert await words.line() == ""
        events = Path(scope.cgroup.directory, "cgroup.events")
        assert "populated 1" in events.read_text()
        scope.cgroup.kill()
        assert (await process.wait()).signal == signal.SIGKILL
        await asyncio.to_thread(wait_for, "an empty group", lambda: "populated 0" in events.read_text())
        assert not scope.cgroup.kill()


OWNER = """
import asyncio, signal
from muster.process import Scope
async def main():
    scope = await Scope("test", cgroup=True).open()
    await scope.spawn(["sleep", "1000"])
    print(scope.supervisor_pid, scope.cgroup.directory, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("killed", ["owner", "supervisor", "both"])
def test_a_group_is_removed_whatever_was_killed(killed: str, python: Callable[[str], list[str]]) -> None:
    with subprocess.Popen(python(OWNER), stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        supervisor, directory = owner.stdout.readline().split()
        if killed == "both":
            os.kill(owner.pid, signal.SIGSTOP)  # it must not sweep before it is killed
        if killed != "owner":
            os.kill(int(supervisor), signal.SIGKILL)
        if killed != "supervisor":
            owner.kill()
        if killed == "both":  # nothing is left that could end the program, nor remove its group
            owner.wait(120)
            (program,) = Path(directory, "cgroup.procs").read_text().split()
            os.kill(int(program), signal.SIGKILL)
            wait_for("an empty group", lambda: "populated 0" in Path(directory, "cgroup.events").read_text())
            os.utime(directory, (0, 0))
            make_cgroup(uuid.uuid4().hex).remove()
        wait_for("the removal of the group", lambda: not os.path.exists(directory))
        owner.kill()


def test_only_empty_groups_of_dead_creators_are_removed(tmp_path: Path) -> None:
    made = {name: tmp_path / group_name(SCOPE_PREFIX, name) for name in ("dead", "alive", "young", "used")}
    for path in made.values():
        (path / "inner").mkdir(parents=True)
    (made["used"] / "inner" / "process").touch()
    (tmp_path / f"{SCOPE_PREFIX}other").mkdir()  # not made by this version: it may have no lock
    lock = lock_group(str(made["alive"]))
    for name in ("dead", "alive", "used"):
        os.utime(made[name], (0, 0))
    os.utime(tmp_path / f"{SCOPE_PREFIX}other", (0, 0))
    remove_stale_groups(str(tmp_path), SCOPE_PREFIX)
    left = {made["alive"].name, made["young"].name, made["used"].name, f"{SCOPE_PREFIX}other"}
    assert {path.name for path in tmp_path.iterdir()} == left
    os.close(lock)
    os.utime(made["alive"], (0, 0))
    remove_stale_groups(str(tmp_path), SCOPE_PREFIX)
    assert not made["alive"].exists()
    remove_stale_groups(str(tmp_path / "missing"), SCOPE_PREFIX)


@pytest.mark.parametrize("populated", [True, False])
def test_a_kill_says_whether_a_process_is_still_in_the_group(populated: bool, tmp_path: Path) -> None:
    (tmp_path / "cgroup.kill").write_text("")
    (tmp_path / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
    assert Cgroup(str(tmp_path)).kill() == populated
    assert (tmp_path / "cgroup.kill").read_text() == "1"


async def test_a_scope_that_does_not_ask_for_a_group_has_none() -> None:
    async with Scope("test") as scope:
        assert scope.cgroup.directory is None
        process = await scope.spawn(["sleep", "1000"])
        assert Path(f"/proc/{process.pid}/cgroup").read_text() == Path("/proc/self/cgroup").read_text()


def test_without_a_group_nothing_happens() -> None:
    assert not Cgroup().kill()
    Cgroup().remove()


@pytest.mark.parametrize(
    ("files", "may"),
    [
        ({}, True),
        ({"memory.max": "max\n", "cpu.max": "max 100000\n"}, True),
        ({"memory.max": "1073741824\n"}, False),
        ({"cpu.max": "200000 100000\n"}, False),
    ],
)
def test_no_group_is_created_below_one_with_limits_that_programs_read(
    files: dict[str, str], may: bool, tmp_path: Path
) -> None:
    for name, text in {"cgroup.procs": "", **files}.items():
        (tmp_path / name).write_text(text)
    assert may_have_children(str(tmp_path)) == may


def test_no_group_is_made_inside_slurm_s(tmp_path: Path) -> None:
    place = tmp_path / "system.slice" / "slurmstepd.scope" / "job_7" / "step_0" / "user" / "task_0"
    place.mkdir(parents=True)
    (place / "cgroup.procs").write_text("")
    assert not may_have_children(str(place))


def test_where_no_group_can_be_made_the_scope_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_directory", lambda controller: str(tmp_path))
    assert make_cgroup("x").directory is None  # nothing here that can be entered
    (tmp_path / "cgroup.procs").write_text("")
    assert make_cgroup("x").directory is None  # no cgroup.kill in it
    assert os.listdir(tmp_path) == ["cgroup.procs"]


FILES = {
    "/proc/self/mounts": "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
    "/proc/self/cgroup": "4:memory:/slurm/job_7\n0::/user.slice\n",
    "/proc/vmstat": "pgfault 1\noom_kill 9\n",
}


def test_kills_are_counted_where_the_group_tells_and_else_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict(FILES)
    monkeypatch.setattr(module, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(module.os.path, "isdir", lambda path: True)
    assert own_directory("") == "/sys/fs/cgroup/unified/user.slice"
    assert own_directory("memory") == "/sys/fs/cgroup/memory/slurm/job_7"
    assert oom_kills(oom_counter()) == 9
    files["/sys/fs/cgroup/memory/slurm/job_7/memory.oom_control"] = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    assert oom_kills(oom_counter()) == 2
    files["/sys/fs/cgroup/unified/user.slice/memory.events"] = "low 0\noom 1\noom_kill 1\n"
    assert oom_kills(oom_counter()) == 1
    assert oom_kills(None) == 0
