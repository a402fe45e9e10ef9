"""The lab queries its Slurm for the states of nodes, waits for them, and shows the log of a failed daemon."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.lab import LabError, slurm
from muster.lab.plan import CONTROLLER, LabPlan
from muster.lab.process import ProcessId

DEAD = ProcessId(2**22 + 1, 1)  # above every pid


class LabCommands:
    """sinfo and scontrol as scripts; sinfo prints `states`, line by line a further one at every call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("sinfo", "scontrol"):
            (root / name).write_text(
                f'#!/bin/sh\necho "{name} $*" >>{root}/calls\n[ {name} = scontrol ] && exit 0\n'
                f"cat {root}/states-$(grep -c ^sinfo {root}/calls) 2>/dev/null || cat {root}/states\n"
            )
            (root / name).chmod(0o755)
        self.env = {"PATH": f"{root}:{os.environ['PATH']}"}

    def prints(self, *answers: str) -> None:
        """Answer the calls of sinfo in this order; the last answer stays."""
        for number, answer in enumerate(answers[:-1], 1):
            (self.root / f"states-{number}").write_text(answer)
        (self.root / "states").write_text(answers[-1])

    @property
    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()


@pytest.fixture
def commands(tmp_path: Path) -> LabCommands:
    return LabCommands(tmp_path)


@pytest.fixture
def plan() -> Iterator[LabPlan]:
    with tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp") as directory:
        plan = LabPlan(nodes=2, state_dir=Path(directory))
        plan.log_dir.mkdir()
        yield plan


@pytest.fixture
def alive() -> ProcessId:
    found = ProcessId.find(os.getpid())
    assert found is not None
    return found


def test_each_node_has_the_state_that_sinfo_prints(commands: LabCommands) -> None:
    commands.prints("n1 idle\nn2 down*\n")
    assert slurm.node_states(commands.env) == {"n1": "idle", "n2": "down*"}


def test_without_an_answer_of_slurmctld_there_are_no_states(commands: LabCommands) -> None:
    assert slurm.node_states(commands.env) is None  # no file to print: sinfo fails


def test_the_controller_is_awaited_until_it_answers(commands: LabCommands, plan: LabPlan, alive: ProcessId) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm.time, "sleep", lambda seconds: commands.prints("n1 unknown\n"))
        slurm.wait_for_controller(plan, commands.env, alive, 120)
    assert len(commands.calls) == 2


def test_a_controller_that_ends_or_is_silent_is_reported_with_its_log(
    commands: LabCommands, plan: LabPlan, alive: ProcessId
) -> None:
    plan.log_file(CONTROLLER).write_text("fatal: no such setting\n")
    with pytest.raises(LabError, match=r"^slurmctld has ended\.\n.*/slurmctld\.log:\nfatal: no such setting$"):
        slurm.wait_for_controller(plan, commands.env, DEAD, 120)
    with pytest.raises(LabError, match=r"^slurmctld does not answer after 0 s\.\n.*\nfatal: no such setting$"):
        slurm.wait_for_controller(plan, commands.env, alive, 0)


@pytest.mark.parametrize("usable", ["idle", "allocated", "mixed"])
def test_nodes_are_usable_once_slurm_can_run_jobs_on_them(
    commands: LabCommands, plan: LabPlan, alive: ProcessId, monkeypatch: pytest.MonkeyPatch, usable: str
) -> None:
    monkeypatch.setattr(slurm, "STATE_POLL_S", 0.0)
    commands.prints("n1 idle*\nn2 idle\n", "n1 unknown\n", f"n1 {usable}\nn2 down\n")
    slurm.wait_until_usable(plan, commands.env, {"n1": alive}, 120)
    assert len(commands.calls) == 3


def test_nodes_that_are_not_usable_in_time_are_named_with_their_states(
    commands: LabCommands, plan: LabPlan, alive: ProcessId
) -> None:
    commands.prints("n1 idle~\n")
    with pytest.raises(LabError, match=r"^not usable after 0 s: n1 \(idle~\), n2 \(unknown\)\.\n"):
        slurm.wait_until_usable(plan, commands.env, {"n1": alive, "n2": alive}, 0)


def test_a_node_whose_daemon_has_ended_is_not_awaited(commands: LabCommands, plan: LabPlan, alive: ProcessId) -> None:
    commands.prints("n1 down\n")
    with pytest.raises(LabError, match=r"^slurmd has ended on n2\.\n.*boot-n2\.log"):
        slurm.wait_until_usable(plan, commands.env, {"n1": alive, "n2": DEAD}, 120)


def test_a_node_has_returned_when_it_is_neither_down_nor_unknown(
    commands: LabCommands, plan: LabPlan, alive: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "STATE_POLL_S", 0.0)
    commands.prints("n1 down*\n", "n2 idle\n", "n1 drained\n")
    slurm.wait_for_return(plan, commands.env, "n1", alive, 120)
    assert len(commands.calls) == 3


def test_a_node_is_marked_down_with_a_reason_and_resumed(commands: LabCommands) -> None:
    slurm.mark_down(commands.env, "n2")
    slurm.resume(commands.env, "n2")
    assert commands.calls == [
        "scontrol update nodename=n2 state=down reason=died",
        "scontrol update nodename=n2 state=resume",
    ]


def test_the_tail_of_a_log_is_the_daemon_s_else_that_of_the_start(plan: LabPlan) -> None:
    assert slurm.log_tail(plan, "n1") == f"{plan.boot_log('n1')}:\n"
    plan.boot_log("n1").write_text("mount: failed\n")
    assert slurm.log_tail(plan, "n1") == f"{plan.boot_log('n1')}:\nmount: failed"
    plan.log_file("n1").write_bytes(b"\xff\n" + b"".join(b"line %d\n" % n for n in range(20)))
    assert slurm.log_tail(plan, "n1", lines=2) == f"{plan.log_file('n1')}:\nline 18\nline 19"
