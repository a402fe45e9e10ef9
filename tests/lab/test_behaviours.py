"""Behaviours of the rendezvous with real agents on a real Slurm; the numbers are those of tests/rendezvous."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.lab.conftest import SlurmCommand, agent_on
from tests.running import wait_for

LAB = {"nodes": 4}
WAIT_ONCE = 'echo "cycle $MUSTER_CYCLE"; [ $MUSTER_CYCLE != 0 ] || sleep 1000'


def held_back(rank: int) -> str:
    """A set-up that keeps this node from coming until the file `go` is there."""
    return f'until [ "$MUSTER_RANK" != {rank} ] || [ -e go ]; do sleep 0.1; done'


def hosts(run: Path) -> list[str]:
    return (run / "attempt-0" / "hosts").read_text().split()


def nodes(slurm: SlurmCommand) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = slurm.status()["nodes"]
    return found


def test_2_and_14_a_late_node_is_a_spare_and_takes_part_in_the_next_cycle(slurm: SlurmCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--last-call", "1", "--setup", held_back(2))
    process = slurm.start(*slurm.run_args(*options, "--", "bash", "-c", WAIT_ONCE, nodes=3))
    names = hosts(slurm.wait_for_driver("cycle 0"))
    assert slurm.status()["cycles"][0]["members"] == [names[0], names[1], names[3]]
    (slurm.cwd / "go").touch()
    wait_for("the late node to be a spare", lambda: nodes(slurm)[2]["role"] == "spare")
    os.kill(agent_on(slurm, names[1]), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "cycle 1" in out, err
    assert [cycle["members"] for cycle in slurm.status()["cycles"]][1] == [names[0], names[2], names[3]]


def test_3_a_round_closes_although_a_node_died_after_it_had_come(slurm: SlurmCommand) -> None:
    options = ("--spares", "1", "--last-call", "300", "--setup", held_back(3))
    process = slurm.start(*slurm.run_args(*options, "--", "echo", "well", nodes=3))
    run = wait_for("a run", lambda: slurm.run_dirs() and slurm.run_dirs()[0])
    wait_for("three nodes", lambda: [n["state"] for n in nodes(slurm)] == ["ready", "arrived", "arrived", "expected"])
    names = hosts(run)
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


def test_15_cycles_without_progress_end_the_job_with_a_code_of_their_own(slurm: SlurmCommand) -> None:
    options = ("--restart-on-driver-failure", "--max-restarts", "10", "--no-progress-limit", "2")
    done = slurm.run(*options, "--", "bash", "-c", "exit 3", nodes=3)
    assert done.returncode == 119, done.stderr
    assert len(slurm.status()["cycles"]) == 2
    assert slurm.ended_job(slurm.status()["job_id"])["ExitCode"] == "119:0"
