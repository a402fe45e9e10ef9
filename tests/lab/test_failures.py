"""Failing fast, by name, on a real Slurm: what a node can do wrong that one machine alone cannot show."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand, agent_on

WAITING = ("--", "bash", "-c", "echo ready; sleep 1000")


@contextmanager
def hidden(slurm: SlurmCommand, node: str, path: Path) -> Iterator[None]:
    """On this node an empty filesystem lies over the path: as if it were not shared."""
    slurm.on_node(node, "mount", "-t", "tmpfs", "hidden", str(path))
    try:
        yield
    finally:
        slurm.on_node(node, "umount", str(path))


def test_a_runs_directory_that_a_node_does_not_see_is_named(slurm: SlurmCommand) -> None:
    runs = slurm.cwd / "muster-runs"
    runs.mkdir()
    with hidden(slurm, "n3", runs):
        done = slurm.run("--", "true")
    assert done.returncode == 125
    assert "node n3 (rank 2) failed in phase 'start': cannot see" in done.stderr
    assert "filesystem that every node shares" in done.stderr


def test_a_runs_directory_that_the_lead_does_not_see_is_named(slurm: SlurmCommand) -> None:
    runs = slurm.cwd / "muster-runs"
    runs.mkdir()
    muster = [sys.executable, "-m", "muster.cli.main", "run", "--no-ray", "--python", slurm.python, "--", "true"]
    with hidden(slurm, "n1", runs):
        done = slurm.slurm("salloc", "--nodes=3", "--exclusive", *muster)
    assert done.returncode == 125
    assert "node n1 (rank 0) failed in phase 'start': cannot see" in done.stderr


def test_an_agent_that_dies_fails_the_run_by_name(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args(*WAITING))
    slurm.wait_for_driver("ready")
    os.kill(agent_on(slurm, "n2"), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 125
    assert "node n2 (rank 1)" in err
    assert slurm.ended_job(slurm.status()["job_id"])["ExitCode"] == "125:0"


def test_a_lead_that_dies_ends_the_job_by_name(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args(*WAITING))
    slurm.wait_for_driver("ready")
    os.kill(agent_on(slurm, "n1"), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 125
    assert "n1" in err
    assert slurm.ended_job(slurm.status()["job_id"])["ExitCode"] == "125:0"


def test_a_node_that_dies_fails_the_run_by_name(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args(*WAITING))
    slurm.wait_for_driver("ready")
    slurm.lab.kill_node("n4")
    try:
        _, err = process.communicate(timeout=90)
    finally:
        slurm.slurm("scancel", "--user=root")
        slurm.lab.heal("n4")
    assert process.returncode == 125
    assert "node n4 (rank 3)" in err


def test_a_node_that_falls_silent_fails_the_run_by_name(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args(*WAITING))
    slurm.wait_for_driver("ready")
    slurm.lab.partition("n4")
    try:
        _, err = process.communicate(timeout=90)
    finally:
        slurm.slurm("scancel", "--user=root")
        slurm.lab.heal("n4")
    assert process.returncode == 125
    assert "n4" in err and "fell silent" in err


def test_an_interpreter_that_one_node_lacks_is_named(slurm: SlurmCommand) -> None:
    elsewhere = slurm.cwd / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "python").symlink_to(slurm.python)
    with hidden(slurm, "n2", elsewhere):
        done = slurm("run", "--nodes", "2", "--no-ray", "--python", str(elsewhere / "python"), "--", "true")
    assert done.returncode == 125
    assert "n2" in done.stderr and "no Python interpreter at" in done.stderr


@pytest.mark.ray
def test_a_ray_start_that_fails_on_one_node_is_named(slurm: SlurmCommand) -> None:
    spoil = 'if [ "$MUSTER_RANK" = 2 ]; then export RAY_START_HOOK=no.such.hook; fi'
    done = slurm.run("--setup", spoil, "--", "true", ray=True)
    assert done.returncode == 125
    assert "node n3 (rank 2) failed in phase 'ray'" in done.stderr and "No module named 'no'" in done.stderr
    kept = {path.name for path in slurm.run_dir().glob("attempt-0/logs/ray/*")}
    assert "n1.tar.gz" in kept and not any(name.endswith(".tmp") for name in kept)
