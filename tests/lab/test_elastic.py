"""A job of MIN to MAX nodes on a real Slurm begins without the nodes that do not arrive, and late ones join Ray."""

from __future__ import annotations

import pytest
from tests.lab.conftest import SlurmCommand

LAB = {"nodes": 4}
HELD_BACK = 'until [ "$MUSTER_RANK" != 3 ] || [ -e go ]; do sleep 0.1; done'
# Computes on three nodes, lets the fourth one come, and computes until it has done some of the work.
GROW = """
import pathlib, time, ray
ray.init(log_to_driver=False)
@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def rank():
    time.sleep(0.05)
    return ray.get_runtime_context().get_node_labels()["muster.io/rank"]
def ranks():
    return sorted(set(ray.get([rank.remote() for _ in range(16)])))
print("before", len(ray.nodes()), flush=True)
pathlib.Path("go").touch()
while ranks() != ["0", "1", "2", "3"]:
    pass
print("after", len(ray.nodes()), flush=True)
"""


def test_a_job_begins_without_a_node_that_never_arrives_on_as_many_as_slurm_has(slurm: SlurmCommand) -> None:
    """Of 3 to 5 nodes Slurm allocates the four that there are; the last one is in its set-up to the end."""
    options = ("--gather-timeout", "8", "--setup", HELD_BACK, "--", "echo", "well")
    done = slurm("run", "-N", "3-5", "--python", slurm.python, "--no-ray", *options)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
    assert "3 of 5 nodes arrived" in done.stderr
    names, status = slurm.hosts(), slurm.status()
    (cycle,) = status["cycles"]
    assert (len(names), cycle["members"], cycle["spares"]) == (4, names[:3], [])
    assert [node["state"] for node in status["nodes"]] == ["gone", "gone", "gone", "expected"]
    job = slurm.ended_job(status["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_that_arrives_late_joins_the_running_ray_cluster(slurm: SlurmCommand) -> None:
    (slurm.cwd / "driver.py").write_text(GROW)
    options = ("--gather-timeout", "20", "--setup", HELD_BACK, "--cpus-per-node", "1", "--", "python", "driver.py")
    done = slurm("run", "-N", "3-4", "--python", slurm.python, *options)
    printed = [line for line in done.stdout.splitlines() if line.startswith(("before", "after"))]
    assert (done.returncode, printed) == (0, ["before 3", "after 4"]), done.stderr
    assert "3 of 4 nodes arrived" in done.stderr and "has arrived late and gets rank 3" in done.stderr
    (cycle,) = slurm.status()["cycles"]
    assert cycle["members"] == slurm.hosts()
