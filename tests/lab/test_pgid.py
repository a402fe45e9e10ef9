"""Supervisors end processes that Slurm misses if it tracks processes by group and not by cgroup."""

from __future__ import annotations

import os
import signal

import pytest
from tests.lab.conftest import SlurmCommand, agent_on

LAB = {"nodes": 2, "proctrack": "pgid"}
ESCAPES = ("--", "bash", "-c", "setsid -f sleep 1001; echo ready; exec sleep 1000")


def test_a_run_ends_cleanly_with_its_code(slurm: SlurmCommand) -> None:
    done = slurm.run("--", "bash", "-c", "setsid -f sleep 1001; exit 7", nodes=2)
    assert done.returncode == 7
    assert slurm.ended_job(slurm.status()["job_id"])["ExitCode"] == "7:0"


@pytest.mark.parametrize("node", ["n1", "n2"], ids=["the lead", "a worker"])
def test_a_killed_agent_leaves_nothing(slurm: SlurmCommand, node: str) -> None:
    process = slurm.start(*slurm.run_args(*ESCAPES, nodes=2))
    slurm.wait_for_driver("ready")
    os.kill(agent_on(slurm, node), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert node in err


def test_scancel_leaves_nothing(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args(*ESCAPES, nodes=2))
    slurm.wait_for_driver("ready")
    slurm.slurm("scancel", slurm.status()["job_id"])
    process.communicate(timeout=180)
    assert process.returncode == 143
