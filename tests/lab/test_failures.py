"""A run fails fast and names the node, in cases that need several hosts with a real Slurm."""

from __future__ import annotations

import sys

from tests.lab.conftest import SlurmCommand
from tests.lab.hiding import hidden


def test_a_runs_directory_that_a_node_does_not_see_is_named(slurm: SlurmCommand) -> None:
    runs = slurm.cwd / "muster-runs"
    runs.mkdir()
    with hidden(slurm, "n3", runs):
        done = slurm.run("--", "true")
    assert done.returncode == 125
    assert "node n3 (index 2) failed in phase 'start': cannot see" in done.stderr
    assert "filesystem that every node shares" in done.stderr


def test_a_runs_directory_that_the_leader_does_not_see_is_named(slurm: SlurmCommand) -> None:
    runs = slurm.cwd / "muster-runs"
    runs.mkdir()
    muster = [sys.executable, "-m", "muster.cli.main", "run", "--no-ray", "--python", slurm.python, "--", "true"]
    with hidden(slurm, "n1", runs):
        done = slurm.slurm("salloc", "--nodes=3", "--exclusive", *muster)
    assert done.returncode == 125
    assert "node n1 (index 0) failed in phase 'start': cannot see" in done.stderr


def test_an_interpreter_that_one_node_lacks_is_named(slurm: SlurmCommand) -> None:
    elsewhere = slurm.cwd / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "python").symlink_to(slurm.python)
    with hidden(slurm, "n2", elsewhere):
        done = slurm("run", "--nodes", "2", "--no-ray", "--python", str(elsewhere / "python"), "--", "true")
    assert done.returncode == 125
    assert "n2" in done.stderr and "no Python interpreter at" in done.stderr
