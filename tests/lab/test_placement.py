"""`muster.placement` on a real Slurm, in an environment that has Ray alone; a node is killed under what is placed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand
from tests.placement import scenarios
from tests.ray_alone import ray_alone
from tests.running import wait_for

pytestmark = pytest.mark.ray

LAB = {"nodes": 3}
MARK = "MUSTER_PLACEMENT_TEST=lab"
# Ray gives a silent node about a minute; here some seconds, which is the same but for the waiting.
NOTICES_SOON = ("RAY_health_check_timeout_ms=5000", "RAY_health_check_period_ms=1000",
                "RAY_health_check_failure_threshold=2")  # fmt: skip

# A server with a part on each of the two nodes, and one that must not be on the head; both go on when a node is lost.
LOSES_A_NODE = """
import json, os, time
import ray
from muster.placement import Model, Policy, Probe, Replicas, survey
ray.init(log_to_driver=False, logging_level="error")
head = next(node.id for node in survey().nodes if node.head)
program = {"python_args": ["-S", "-c", "import time; time.sleep(1000)"], "env": {"MUSTER_PLACEMENT_TEST": "lab"},
           "probe": Probe("none"), "policy": Policy(max_restarts=9), "grace": 1.0, "on_event": print}
wide = Replicas("wide", Model("wide", pp=2, strategy="STRICT_SPREAD"), **program)
away = Replicas("away", Model("away", exclude_head=True), **program)
with wide, away:
    before = [server.status()[0] for server in (wide, away)]
    print("placed", flush=True)
    def again(server):
        (status,) = server.status()
        return status.restarts and status.state == "ready"
    while not (again(wide) and again(away)):
        time.sleep(0.1)
    for was, server in zip(before, (wide, away)):
        (now,) = server.status()
        assert set(was.nodes) - set(now.nodes) and len(now.nodes) == len(was.nodes), (was, now)
    here = before[0].nodes.index(head)
    assert not os.path.exists(f"/proc/{before[0].pids[here]}"), "a part of what was lost is left"
    print("placed again", flush=True)
    while not os.path.exists(os.environ["MUSTER_OUTPUT_DIR"] + "/done"):
        time.sleep(0.1)
"""


@contextmanager
def lost(slurm: SlurmCommand, victim: str) -> Iterator[None]:
    slurm.lab.kill_node(victim)
    try:
        yield
    finally:
        slurm.lab.heal(victim)


def placed_on(slurm: SlurmCommand, node: str) -> list[int]:
    """Processes of the programs, by their environment."""
    found = []
    for pid in slurm.lab.processes(node):
        try:
            if MARK in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"):
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.timeout(600)
def test_what_is_placed_outlives_a_killed_node_on_the_others_and_nothing_of_it_is_left(slurm: SlurmCommand) -> None:
    slurm.python = ray_alone(slurm.cwd / "venv")
    (slurm.cwd / "driver.py").write_text(LOSES_A_NODE)
    command = f"python {scenarios.__file__} && python driver.py"
    options = ("--spares", "1", "--on-node-loss", "replace", "--gpus-per-node", "2")
    given = [word for variable in ("PYTHONPATH=", *NOTICES_SOON) for word in ("--env", variable)]
    process = slurm.start(*slurm.run_args(*options, *given, "--", "bash", "-c", command, nodes=2, ray=True))
    try:
        run = wait_for("the servers", lambda: process.poll() is not None or said(slurm, "placed\n"), 200)
        assert process.poll() is None, process.communicate()
        spare = (run / "attempt-0" / "hosts").read_text().split()[2]
        assert [len(placed_on(slurm, node)) for node in ("n1", "n2", "n3")] == [1, 2, 0]
        with lost(slurm, "n2"):
            wait_for("another place", lambda: said(slurm, "placed again\n") or process.poll() is not None, 200)
            assert process.poll() is None, process.communicate()
            assert (len(placed_on(slurm, "n1")), len(placed_on(slurm, spare))) == (1, 2)
            programs = json.loads(slurm("ps", "--json").stdout)["programs"]
            assert [program["name"] for program in programs] == ["away/1/0.0", "wide/1/0.0", "wide/1/0.1"]
            assert programs[0]["host"] == spare and {program["host"] for program in programs[1:]} == {"n1", spare}
            assert all(program["owned"] for program in programs)
            (run / "output" / "done").touch()
            out, err = process.communicate(timeout=100)
    finally:
        print(slurm("logs").stdout)  # for whoever reads of a failure
        process.kill()
        process.communicate()
    assert process.returncode == 0, out + err
    held = [line.removeprefix("holds: ") for line in out.splitlines() if line.startswith("holds: ")]
    assert held == [scenario.__name__ for scenario in scenarios.SCENARIOS]
    assert "muster-library.zip" in out
    assert not placed_on(slurm, "n1") and not placed_on(slurm, spare)


def said(slurm: SlurmCommand, text: str) -> Path | None:
    """The run, when its driver has written this."""
    for path in slurm.cwd.glob("muster-runs/*/attempt-0/logs/driver.log"):
        if text in path.read_text(errors="replace"):
            return path.parents[2]
    return None
