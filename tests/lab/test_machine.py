"""Machines of the lab start, with scripts that need no namespaces here, and run commands."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.running import wait_for

from muster.lab import LabError, boot, machine
from muster.lab.plan import LabPlan
from muster.lab.process import ProcessId, kill_all
from muster.lab.users import LabUser


@pytest.fixture
def plan() -> Iterator[LabPlan]:
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp") as directory:
        plan = LabPlan(nodes=2, proctrack="pgid", state_dir=Path(directory))
        plan.boot_dir.mkdir()
        plan.log_dir.mkdir()
        yield plan


def boots_with(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every machine with this script, in which {name} is the machine's name."""
    monkeypatch.setattr(boot, "launch_script", lambda plan, name, freezer: script.replace("{name}", name))


def test_machines_run_on_once_their_network_is_connected(plan: LabPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = plan.state_dir
    boots_with(f'echo $$; read go || exit 1; echo "$go" >{marks}/{{name}}; exec sleep 1000 >/dev/null', monkeypatch)
    connected: list[dict[str, int]] = []

    def connect(pids: dict[str, int]) -> None:
        connected.append(pids)
        assert not (marks / "n1").exists() and not (marks / "n2").exists()

    started = machine.start(plan, plan.node_names, [], connect)
    try:
        assert connected == [{name: init.pid for name, init in started.items()}] and list(started) == ["n1", "n2"]
        for name in ("n1", "n2"):
            wait_for(f"{name} to go on", lambda name=name: (marks / name).exists() and (marks / name).read_text())
            assert (marks / name).read_text() == "go\n"
        assert all(init.alive() for init in started.values())
    finally:
        kill_all(started.values())


def test_a_machine_that_does_not_start_is_reported_with_its_log(plan: LabPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    boots_with("echo no namespaces today >&2; exit 1", monkeypatch)
    with pytest.raises(LabError, match="machine n1 did not start: no namespaces today"):
        machine.start(plan, ["n1"], [], lambda pids: None)


def test_a_machine_that_does_not_answer_is_reported_and_ends_with_its_input(
    plan: LabPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "BOOT_DEADLINE_S", 0.0)
    boots_with(f"read go; echo over >{plan.state_dir}/end", monkeypatch)
    with pytest.raises(LabError, match="machine n1 did not start: no answer within 0 s"):
        machine.start(plan, ["n1"], [], lambda pids: None)
    wait_for("the machine to end", (plan.state_dir / "end").exists)


def test_if_the_network_fails_the_machines_end(plan: LabPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    boots_with("echo $$; read go || exit 1; exec sleep 1000 >/dev/null", monkeypatch)
    inits: list[ProcessId | None] = []

    def fail(pids: dict[str, int]) -> None:
        inits.extend(ProcessId.find(pid) for pid in pids.values())
        raise LabError("no network")

    with pytest.raises(LabError, match="no network"):
        machine.start(plan, plan.node_names, [], fail)
    assert len(inits) == 2
    wait_for("both to end", lambda: not any(init is not None and init.alive() for init in inits))


def test_a_command_enters_all_namespaces_and_dies_with_the_one_that_entered() -> None:
    argv = machine.enter_argv(ProcessId(42, 1), ["echo", "a b"], "/some/where")
    assert argv[:2] == ["nsenter", "--target=42"]
    inside = argv[argv.index("--") + 1 :]
    assert set(argv[2 : argv.index("--")]) == {"--mount", "--uts", "--net", "--pid", "--cgroup"}
    assert inside[:3] == ["setpriv", "--pdeathsig", "KILL"] and inside[-2:] == ["echo", "a b"]


@pytest.mark.parametrize("missing", [False, True])
def test_a_command_runs_in_its_directory_or_in_the_root_if_the_machine_has_none(tmp_path: Path, missing: bool) -> None:
    directory = tmp_path / "none" if missing else tmp_path
    argv = machine.enter_argv(ProcessId(42, 1), ["pwd"], directory)
    in_shell = argv[argv.index("sh") :]  # without nsenter and setpriv, which need a machine
    done = subprocess.run(in_shell, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == ("/\n" if missing else f"{tmp_path}\n")


def test_the_processes_of_a_machine_are_those_of_its_pid_namespace() -> None:
    own = ProcessId.find(os.getpid())
    assert own is not None and {os.getpid(), os.getppid()} <= set(machine.processes(own))
    gone = subprocess.Popen(["true"])
    gone.wait(120)
    assert machine.processes(ProcessId(gone.pid, 1)) == []


def test_a_user_s_command_changes_to_the_user_and_starts_at_home_if_its_directory_is_missing(tmp_path: Path) -> None:
    login = machine.Login(LabUser("alice", 5001), tmp_path)
    plan = LabPlan(nodes=1, users=(login.user,))
    inside = machine.enter_argv(ProcessId(42, 1), ["pwd"], tmp_path / "none", login)
    outside = machine.login_argv(plan, [], ["pwd"], tmp_path / "none", login)
    assert outside[:2] == ["unshare", "--mount"]
    for argv in (inside, outside):
        become = argv[len(argv) - argv[::-1].index("setpriv") - 1 :]
        assert become[become.index("--reuid=5001") :][:3] == ["--reuid=5001", "--regid=5001", "--clear-groups"]
        in_shell = become[become.index("sh") :]
        done = subprocess.run(in_shell, capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout == f"{tmp_path}\n"
