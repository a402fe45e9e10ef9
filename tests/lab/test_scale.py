"""A run on sixty-four real Slurm nodes uses one step and no more RPCs of slurmctld than a run on four."""

from __future__ import annotations

import re

import pytest
from tests.lab.conftest import SlurmCommand

LAB = {"nodes": 64}

# What Slurm's own daemons send for every node of a job, whatever the job does.
PER_NODE = {
    "MESSAGE_EPILOG_COMPLETE",
    "MESSAGE_NODE_REGISTRATION_STATUS",
    "REQUEST_COMPLETE_PROLOG",
    "REQUEST_STEP_COMPLETE",
}
OURS_TO_ASK = {"REQUEST_STATS_INFO", "REQUEST_JOB_STEP_INFO"}


def bring_up_rpcs(slurm: SlurmCommand, nodes: int) -> dict[str, int]:
    """RPC counts of slurmctld, by type, from submission until the driver runs on all nodes."""
    slurm.slurm("sdiag", "--reset")
    process = slurm.start(*slurm.run_args("--", "bash", "-c", f"echo with {nodes}; sleep 1000", nodes=nodes))
    slurm.wait_for_driver(f"with {nodes}")
    report = slurm.slurm("sdiag").stdout.partition("by message type")[2].partition("by user")[0]
    status = slurm.status()
    assert [node["state"] for node in status["nodes"]] == ["ready"] * nodes
    assert slurm.steps(status["job_id"]) == [f"{status['job_id']}.0"]
    assert slurm("stop", status["run"]).returncode == 0
    process.communicate(timeout=180)
    slurm.ended_job(status["job_id"])
    counts = {name: int(count) for name, count in re.findall(r"(\w+)\s+\(\s*\d+\) count:(\d+)", report)}
    return {name: count for name, count in counts.items() if name not in PER_NODE | OURS_TO_ASK}


@pytest.mark.slow
def test_the_load_on_slurmctld_does_not_grow_with_the_nodes(slurm: SlurmCommand) -> None:
    few, many = bring_up_rpcs(slurm, 4), bring_up_rpcs(slurm, 64)
    assert few["REQUEST_JOB_STEP_CREATE"] == many["REQUEST_JOB_STEP_CREATE"] == 1
    assert few == many


@pytest.mark.slow
def test_a_command_runs_with_all_sixty_four_nodes(slurm: SlurmCommand) -> None:
    done = slurm.run("--", "bash", "-c", "exit 3", nodes=64)
    assert done.returncode == 3
    assert "all 64 nodes arrived" in done.stderr
    assert {node["state"] for node in slurm.status()["nodes"]} == {"gone"}
