"""A job that Slurm suspends for longer than every lease goes on after the resume, as if nothing had happened."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

from muster.election.timing import FENCE_S

LAB = {"nodes": 4}
SUSPENDED_S = 60.0
DRIVER = """
import os, time
output = os.environ["MUSTER_OUTPUT_DIR"]
print("cycle", os.environ["MUSTER_CYCLE"], flush=True)
while not os.path.exists(os.path.join(output, "finish")):
    with open(os.path.join(output, "beats"), "a") as file:
        file.write(".")
    time.sleep(0.1)
"""
RAY_DRIVER = """
import os, time, ray
output = os.environ["MUSTER_OUTPUT_DIR"]
ray.init(log_to_driver=False)

@ray.remote(num_cpus=0, scheduling_strategy="SPREAD")
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

counters = [Counter.remote() for _ in range(6)]
steps = 0
print("cycle", os.environ["MUSTER_CYCLE"], flush=True)
while not os.path.exists(os.path.join(output, "finish")):
    steps += 1
    assert ray.get([counter.add.remote() for counter in counters]) == [steps] * 6, "an actor was restarted"
    with open(os.path.join(output, "beats"), "a") as file:
        file.write(".")
    time.sleep(0.1)
print("nodes", sum(node["Alive"] for node in ray.nodes()), flush=True)
"""


def beats(slurm: SlurmCommand) -> int:
    path = slurm.run_dir() / "output" / "beats"
    return len(path.read_text()) if path.exists() else 0


def happened(slurm: SlurmCommand) -> list[dict[str, Any]]:
    events = slurm.run_dir() / "attempt-0" / "events-0.jsonl"
    return [json.loads(line) for line in events.read_text().splitlines()]


@contextmanager
def suspended(slurm: SlurmCommand, job_id: str) -> Iterator[None]:
    assert slurm.slurm("scontrol", "suspend", job_id).returncode == 0
    try:
        wait_for("the job to be suspended", lambda: slurm.job(job_id)["JobState"] == "SUSPENDED")
        yield
    finally:
        assert slurm.slurm("scontrol", "resume", job_id).returncode == 0


def goes_on(slurm: SlurmCommand, *args: str, ray: bool) -> None:
    """Run a job, suspend and resume it, and check that it ends in its first cycle under its first leader."""
    process = slurm.start(*slurm.run_args(*args, "--", "python", "driver.py", nodes=3, ray=ray))
    slurm.wait_for_driver("cycle 0")
    wait_for("the status to tell", lambda: slurm.status()["state"] == "running")
    wait_for("the driver to work", lambda: beats(slurm) > 0)
    with suspended(slurm, slurm.status()["job_id"]):
        time.sleep(4.0)  # slurmstepd warns the processes first
        before = beats(slurm)
        time.sleep(SUSPENDED_S)  # the claim is about time that passes
        assert beats(slurm) == before
    wait_for("the driver to go on", lambda: beats(slurm) > before + 5)
    time.sleep(FENCE_S + 2.0)  # a node that was lost would be noticed by now
    (slurm.run_dir() / "output" / "finish").touch()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    status, events = slurm.status(), happened(slurm)
    assert (status["term"], status["cycle"], status["state"]) == (0, 0, "succeeded")
    assert [event["seconds"] for event in events if event["event"] == "suspended"] > [SUSPENDED_S - 5.0]
    assert not [event for event in events if event.get("state") in ("lost", "failed")]


@pytest.mark.slow
def test_a_suspended_job_goes_on_in_the_same_cycle_under_the_same_leader(slurm: SlurmCommand) -> None:
    (slurm.cwd / "driver.py").write_text(DRIVER)
    goes_on(slurm, "--spares", "1", "--on-node-loss", "restart", ray=False)


@pytest.mark.slow
@pytest.mark.ray
def test_a_suspended_job_with_ray_keeps_its_actors(slurm: SlurmCommand) -> None:
    (slurm.cwd / "driver.py").write_text(RAY_DRIVER)
    goes_on(slurm, "--on-node-loss", "restart", "--spares", "1", ray=True)
    assert "nodes 3" in (slurm.run_dir() / "attempt-0" / "logs" / "driver.log").read_text()
