"""Real agents on a real Slurm show the behaviors that have the same numbers in lifecycle/test_acceptance.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.lab.conftest import WAIT_ONCE, SlurmCommand, agent_on
from tests.running import wait_for

LAB = {"nodes": 4}


def held_back(rank: int) -> str:
    """A set-up that keeps this node from coming until the file `go` is there."""
    return f'until [ "$MUSTER_RANK" != {rank} ] || [ -e go ]; do sleep 0.1; done'


def nodes(slurm: SlurmCommand) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = slurm.status()["nodes"]
    return found


def test_2_and_14_a_late_node_is_a_spare_and_takes_part_in_the_next_cycle(slurm: SlurmCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--last-call", "1", "--setup", held_back(2))
    process = slurm.start(*slurm.run_args(*options, "--", "bash", "-c", WAIT_ONCE, nodes=3))
    slurm.wait_for_driver("cycle 0")
    names = slurm.hosts()
    assert slurm.status()["cycles"][0]["members"] == [names[0], names[1], names[3]]
    (slurm.cwd / "go").touch()
    wait_for(
        "the late node to be a spare",
        lambda: (nodes(slurm)[2]["role"], nodes(slurm)[2]["state"]) == ("spare", "arrived"),
    )
    os.kill(agent_on(slurm, names[1]), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "cycle 1" in out, err
    assert [cycle["members"] for cycle in slurm.status()["cycles"]][1] == [names[0], names[2], names[3]]


def test_3_a_round_closes_although_a_node_died_after_it_had_come(slurm: SlurmCommand) -> None:
    options = ("--spares", "1", "--last-call", "300", "--setup", held_back(3))
    process = slurm.start(*slurm.run_args(*options, "--", "echo", "well", nodes=3))
    wait_for("a run", slurm.run_dirs)
    wait_for("three nodes", lambda: [n["state"] for n in nodes(slurm)] == ["ready", "arrived", "arrived", "expected"])
    names = slurm.hosts()
    os.kill(agent_on(slurm, names[1]), signal.SIGKILL)
    wait_for("its loss to be seen", lambda: nodes(slurm)[1]["state"] == "lost")
    (slurm.cwd / "go").touch()
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "well\n"), err
    (cycle,) = slurm.status()["cycles"]
    assert cycle["members"] == [names[0], names[2], names[3]]


def test_5_and_9_unhealthy_nodes_get_no_rank_and_ranks_follow_the_topology(slurm: SlurmCommand) -> None:
    where = "case $MUSTER_RANK in 2) export MUSTER_DOMAIN=far ;; *) export MUSTER_DOMAIN=near ;; esac"
    options = ("--spares", "1", "--setup", where, "--health-check", "[ $MUSTER_RANK != 1 ]")
    done = slurm.run(*options, "--", "true", nodes=3)
    assert done.returncode == 0, done.stderr
    assert [node["logical_rank"] for node in nodes(slurm)] == [0, None, 2, 1]
    assert nodes(slurm)[1]["role"] == "excluded"


@contextmanager
def held(slurm: SlurmCommand, host: str) -> Iterator[None]:
    """The node's agent neither hears nor says anything; not for as long as would make it lost."""
    agent = agent_on(slurm, host)
    os.kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


FAIL_ONCE = """\
echo "cycle $MUSTER_CYCLE"
until [ -e go-$MUSTER_CYCLE ]; do sleep 0.1; done
exit $((1 - MUSTER_CYCLE))
"""


@pytest.mark.parametrize(("last_call", "waits"), [("300", True), ("0.5", False)], ids=["inside", "after"])
def test_6_a_spare_takes_the_place_of_a_slow_member_after_the_last_call_and_not_inside_it(
    slurm: SlurmCommand, last_call: str, waits: bool
) -> None:
    options = ("--spares", "1", "--restart-on-driver-failure", "--max-restarts", "1", "--last-call", last_call)
    process = slurm.start(*slurm.run_args(*options, "--", "bash", "-c", FAIL_ONCE, nodes=3))
    slurm.wait_for_driver("cycle 0")
    names = slurm.hosts()
    with held(slurm, names[1]):
        (slurm.cwd / "go-0").touch()
        if waits:
            wait_for("the spare", lambda: slurm.status()["cycle"] == 1 and nodes(slurm)[3]["state"] == "arrived")
        else:
            slurm.wait_for_driver("cycle 1")
    (slurm.cwd / "go-1").touch()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    members = [names[0], names[1], names[2]] if waits else [names[0], names[2], names[3]]
    assert slurm.status()["cycles"][1]["members"] == members


LEAVES, STAYS = "trap 'exit 0' TERM", "trap '' TERM"


@pytest.mark.parametrize(
    ("trap", "grace", "code"),
    [(LEAVES, "20s", 0), (":", "20s", 143), (STAYS, "2s", 137)],
    ids=["leaves", "dies", "ignores"],
)
def test_13_on_sigterm_children_may_leave_in_time_and_are_killed_after_the_grace(
    slurm: SlurmCommand, trap: str, grace: str, code: int
) -> None:
    work = f'{trap}; echo "rank $RANK"; while :; do sleep 0.1; done'
    options = ("--spares", "1", "--procs-per-node", "2", "--stop-grace", grace, "--", "bash", "-c", work)
    process = slurm.start(*slurm.run_args(*options, nodes=3))
    slurm.wait_for_driver("rank 0")
    logs = [slurm.rank_output(rank) for rank in range(6)]
    wait_for("the trap of every process", lambda: all(log.exists() and "rank" in log.read_text() for log in logs))
    slurm.slurm("scancel", "--signal=TERM", slurm.status()["job_id"])
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert {node["state"] for node in nodes(slurm)} == {"gone"}


def test_15_cycles_without_progress_end_the_job_with_a_code_of_their_own(slurm: SlurmCommand) -> None:
    options = ("--restart-on-driver-failure", "--max-restarts", "10", "--no-progress-limit", "2")
    done = slurm.run(*options, "--", "bash", "-c", "exit 3", nodes=3)
    assert done.returncode == 119, done.stderr
    assert len(slurm.status()["cycles"]) == 2
    assert slurm.ended_job(slurm.status()["job_id"])["ExitCode"] == "119:0"


def test_16_the_leader_leaves_when_the_spare_has_seen_the_end_and_not_before(slurm: SlurmCommand) -> None:
    wait = "echo here; until [ -e go ]; do sleep 0.1; done"
    process = slurm.start(*slurm.run_args("--spares", "1", "--", "bash", "-c", wait, nodes=3))
    run = slurm.wait_for_driver("here")
    leader, *_, spare = slurm.hosts()
    with held(slurm, spare):
        (slurm.cwd / "go").touch()
        others = [node["rank"] for node in nodes(slurm)][:3]
        wait_for("all but the spare", lambda: {nodes(slurm)[rank]["state"] for rank in others} == {"gone"})
        assert (slurm.status()["state"], agent_on(slurm, leader) > 0) == ("finishing", True)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "the run has ended with 0" in (run / "attempt-0" / "logs" / "node-0003.log").read_text()
    assert slurm.ended_job(slurm.status()["job_id"])["ExitCode"] == "0:0"
