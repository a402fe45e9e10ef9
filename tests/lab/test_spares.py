"""A spare on a real Slurm replaces a killed node in Ray, or a new cycle starts; unused spares exit with 0."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.lab.conftest import WAIT_ONCE, SlurmCommand
from tests.lab.figures import report
from tests.running import wait_for

from muster.rundir import launcher_log

LAB = {"nodes": 5}
# Computes until the nodes of its cluster have changed, and all ranks are there again.
COMPUTE = """
import time, ray
ray.init(log_to_driver=False)
def members():
    labels = [node["Labels"] for node in ray.nodes() if node["Alive"]]
    return sorted((int(known["muster.io/rank"]), known["muster.io/host"]) for known in labels)
first = members()
print("ranks", [rank for rank, _ in first], flush=True)
@ray.remote(max_retries=-1)
def square(number):
    return number * number
while [rank for rank, _ in members()] != [0, 1, 2, 3] or members() == first:
    assert ray.get([square.remote(number) for number in range(8)])[3] == 9
    time.sleep(0.1)
print("ranks", [rank for rank, _ in members()], flush=True)
"""


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempt-0" / "events-0.jsonl").read_text().splitlines()]


def when(run: Path, host: str, **wanted: Any) -> float:
    """The time of the first event of this node with these fields."""
    return next(e["time"] for e in events(run) if e.get("host") == host and wanted.items() <= e.items())


def arrived(event: dict[str, Any]) -> bool:
    return event["event"] == "node" and event["state"] == "arrived"


def others(names: list[str]) -> set[str]:
    return set(names) - {names[2]}


@pytest.mark.slow
@pytest.mark.ray
def test_a_spare_replaces_a_killed_node_in_ray_and_the_driver_goes_on(slurm: SlurmCommand) -> None:
    (slurm.cwd / "driver.py").write_text(COMPUTE)
    options = ("--spares", "1", "--on-node-loss", "replace", "--cpus-per-node", "1", "--", "python", "driver.py")
    process = slurm.start(*slurm.run_args(*options, nodes=4, ray=True))
    run = slurm.wait_for_driver("ranks")
    victim, spare = slurm.hosts()[2], slurm.hosts()[4]
    wait_for("the status to tell", lambda: slurm.status()["state"] == "running")
    killed = time.time()
    with slurm.lost(victim):
        out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert [line for line in out.splitlines() if line.startswith("ranks")] == ["ranks [0, 1, 2, 3]"] * 2
    status = slurm.status()
    assert (status["cycle"], len(status["cycles"])) == (0, 1)
    assert [n["role"] for n in status["nodes"] if n["host"] in (victim, spare)] == ["excluded", "active"]
    noticed, joined = when(run, victim, state="lost"), when(run, spare, state="ready")
    report("a node under replace", noticed=noticed - killed, mended=joined - noticed)
    job = slurm.ended_job(status["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")


def test_a_killed_node_costs_a_restart_and_slurm_s_job_completes(slurm: SlurmCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--", "bash", "-c", WAIT_ONCE)
    process = slurm.start(*slurm.run_args(*options, nodes=4))
    run = slurm.wait_for_driver("cycle 0")
    victim, spare = slurm.hosts()[1], slurm.hosts()[4]
    with slurm.lost(victim):
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert [line for line in out.splitlines() if not line.startswith("muster:")] == ["cycle 0", "cycle 1"]
    status = slurm.status()
    first, second = status["cycles"]
    assert (first["spares"], victim in first["members"], victim in first["reason"]) == ([spare], True, True)
    assert len(second["members"]) == 4 and spare in second["members"] and victim not in second["members"]
    job = slurm.ended_job(status["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
    assert not said_of(run, spare)


def test_a_driver_that_fails_because_a_host_is_silent_runs_again(slurm: SlurmCommand) -> None:
    """It often notices before us: the loss counts, not the driver's failure."""
    wait = "until [ $MUSTER_CYCLE != 0 ] || [ -e go ]; do sleep 0.1; done"
    fail = f'echo "cycle $MUSTER_CYCLE"; {wait}; exit $((1 - MUSTER_CYCLE))'
    options = ("--spares", "1", "--on-node-loss", "restart", "--", "bash", "-c", fail)
    process = slurm.start(*slurm.run_args(*options, nodes=4))
    slurm.wait_for_driver("cycle 0")
    victim = slurm.hosts()[1]
    slurm.lab.partition(victim)
    try:
        (slurm.cwd / "go").touch()
        _, err = process.communicate(timeout=120)
    finally:
        slurm.lab.heal(victim)
    assert process.returncode == 0, err
    assert victim in slurm.status()["cycles"][0]["reason"]


def test_a_node_killed_while_nodes_gather_costs_no_restart(slurm: SlurmCommand) -> None:
    """Its agent is kept waiting before it joins; the round closes without it."""
    setup = 'until [ "$MUSTER_RANK" != 2 ] || [ -e go ]; do sleep 0.1; done'
    options = ("--spares", "1", "--setup", setup, "--last-call", "60", "--", "echo", "well")
    process = slurm.start(*slurm.run_args(*options, nodes=4))
    run = wait_for("a run", lambda: slurm.run_dirs() and slurm.run_dirs()[0])
    names = wait_for("the names of its nodes", lambda: (run / "attempt-0" / "hosts").exists() and slurm.hosts())
    log = run / "attempt-0" / "events-0.jsonl"
    wait_for("the others", lambda: log.exists() and {e["host"] for e in events(run) if arrived(e)} == others(names))
    with slurm.lost(names[2]):
        out, err = process.communicate(timeout=150)
    assert (process.returncode, out) == (0, "well\n"), err
    status = slurm.status()
    assert (status["cycle"], len(status["cycles"])) == (0, 1)
    assert names[2] not in status["cycles"][0]["members"]


def test_on_failure_all_leave_with_the_same_code(slurm: SlurmCommand) -> None:
    done = slurm.run("--spares", "1", "--", "bash", "-c", "exit 9", nodes=4)
    assert done.returncode == 9
    run = slurm.run_dir()
    assert slurm.ended_job(slurm.status()["job_id"])["ExitCode"] == "9:0"
    said = (run / "attempt-0" / "steps.log").read_text()
    assert all(end.reason.endswith("exit code 9") for end in launcher_log.parse(said.splitlines()))
    assert {end.node_index for end in launcher_log.parse(said.splitlines())} == set(range(5))
    assert {node["state"] for node in slurm.status()["nodes"]} == {"gone"}


def said_of(run: Path, host: str) -> list[str]:
    """What srun said of the end of this node's task; nothing when it exited with 0."""
    lines = (run / "attempt-0" / "steps.log").read_text().splitlines()
    return [line for line in lines if host in line and "exit code" in line]
