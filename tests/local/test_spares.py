"""Spares and restarts on this machine: who stands in, what is counted, and how the run ends."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from tests.running import MusterCommand, wait_for

# A driver that waits to lose something in its first cycle, and in a later one tells how it came there.
WAIT_ONCE = (
    'echo "cycle $MUSTER_CYCLE resume $MUSTER_RESUME"; [ $MUSTER_CYCLE != 0 ] || sleep 1000;'
    ' echo "because: $MUSTER_RESTART_REASON"'
)
FAIL_ONCE = 'echo "cycle $MUSTER_CYCLE"; [ $MUSTER_CYCLE != 0 ] || exit 7'


def roles(status: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(node["role"], node["logical_rank"]) for node in status["nodes"]]


def kill(muster: MusterCommand, rank: int) -> None:
    os.kill(muster.agent_pid(rank), signal.SIGKILL)


def test_a_spare_stands_in_for_a_node_that_fails_its_health_check(muster: MusterCommand) -> None:
    done = muster.local("--spares", "1", "--health-check", "[ $MUSTER_RANK != 1 ]", "--", "echo", "well")
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
    status = muster.status()
    assert roles(status) == [("active", 0), ("excluded", None), ("active", 1)]
    assert (status["cycle"], status["error"]) == (0, None)
    (cycle,) = status["cycles"]
    assert (cycle["members"], cycle["spares"]) == (["node-0", "node-2"], [])


def test_more_nodes_that_fail_than_spares_are_named(muster: MusterCommand) -> None:
    check = "echo it is too warm here; [ $MUSTER_RANK = 0 ]"
    done = muster.local("--spares", "1", "--health-check", check, "--", "true")
    assert done.returncode == 125
    assert "it is too warm here" in done.stderr and "1 usable node is left, and the job needs 2" in done.stderr


def test_a_lost_node_restarts_the_driver_on_those_that_are_left(muster: MusterCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart")
    process = muster.start(*muster.local_args(*options, "--", "bash", "-c", WAIT_ONCE, nodes=3))
    run = muster.wait_for_driver("cycle 0")
    kill(muster, 1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    reason = "the agent of node-1 is gone: its connection ended"
    told = ["cycle 0 resume 0", f"muster: cycle 1: {reason}", "cycle 1 resume 1", f"because: {reason}"]
    assert out.splitlines() == told
    assert [line for line in (run / "job.out").read_text().splitlines() if not line.startswith("[muster")] == told
    status = muster.status()
    assert [(c["cycle"], c["members"], c["spares"], c["reason"]) for c in status["cycles"]] == [
        (0, ["node-0", "node-1", "node-2"], ["node-3"], reason),
        (1, ["node-0", "node-2", "node-3"], [], "the driver exited with 0"),
    ]
    assert (run / "attempt-0/logs/driver.log").read_text()[status["cycles"][1]["log_start"] :].startswith("cycle 1 ")
    assert (status["error"], status["state"], status["exit_code"]) == (None, "succeeded", 0)


def test_without_a_budget_a_lost_node_ends_the_run_by_name(muster: MusterCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--max-restarts", "0")
    process = muster.start(*muster.local_args(*options, "--", "bash", "-c", WAIT_ONCE))
    muster.wait_for_driver("cycle 0")
    kill(muster, 1)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 125
    assert "the agent of node-1 is gone" in err and "--max-restarts 0" in err


def test_a_killed_spare_changes_nothing(muster: MusterCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart")
    go_on = "echo ready; until [ -e $MUSTER_OUTPUT_DIR/go ]; do sleep 0.1; done; echo cycle $MUSTER_CYCLE"
    process = muster.start(*muster.local_args(*options, "--", "bash", "-c", go_on))
    run = muster.wait_for_driver("ready")
    kill(muster, 2)
    events = run / "attempt-0" / "events-0.jsonl"
    wait_for("the loss to be seen", lambda: any(lost(line) for line in events.read_text().splitlines()))
    (run / "output" / "go").touch()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "ready\ncycle 0\n"), err
    assert roles(muster.status()) == [("active", 0), ("active", 1), ("excluded", None)]


def lost(line: str) -> bool:
    event = json.loads(line)
    return bool(event["event"] == "node" and event["state"] == "lost")


@pytest.mark.parametrize(
    ("options", "code", "cycles"),
    [([], 7, 1), (["--restart-on-driver-failure"], 0, 2), (["--restart-on-driver-failure", "--max-restarts=0"], 7, 1)],
    ids=["by-default", "wanted", "no-budget"],
)
def test_a_failed_driver_runs_again_only_where_that_is_wanted(
    muster: MusterCommand, options: list[str], code: int, cycles: int
) -> None:
    done = muster.local(*options, "--", "bash", "-c", FAIL_ONCE)
    assert done.returncode == code, done.stderr
    assert len(muster.status()["cycles"]) == cycles


def test_spares_of_a_failed_run_leave_like_everybody(muster: MusterCommand) -> None:
    done = muster.local("--spares", "2", "--", "bash", "-c", "exit 9")
    assert done.returncode == 9
    steps = (muster.run_dir() / "attempt-0" / "steps.log").read_text()
    assert [line for line in steps.splitlines() if "task 0" not in line] == []  # only the lead leaves with the code


REPLACED = """
import time, ray
ray.init(log_to_driver=False)
def alive():
    labels = [node["Labels"] for node in ray.nodes() if node["Alive"]]
    return sorted((int(known["muster.io/rank"]), int(known["muster.io/node"])) for known in labels)
print("before", alive(), flush=True)
while alive() != [(0, 0), (1, 2)]:
    time.sleep(0.1)
@ray.remote(label_selector={"muster.io/rank": "1"})
def where():
    return ray.get_runtime_context().get_node_labels()["muster.io/host"]
print("after", alive(), ray.get(where.remote()), flush=True)
"""


@pytest.mark.ray
def test_a_spare_replaces_a_lost_node_in_the_running_ray_cluster(muster: MusterCommand) -> None:
    (muster.cwd / "driver.py").write_text(REPLACED)
    options = ("--spares", "1", "--on-node-loss", "replace", "--cpus-per-node", "1")
    process = muster.start(*muster.local_args(*options, "--", "python", "driver.py", ray=True))
    muster.wait_for_driver("before")
    kill(muster, 1)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    told = [line for line in out.splitlines() if line.startswith(("before", "after"))]
    assert told == ["before [(0, 0), (1, 1)]", "after [(0, 0), (1, 2)] node-2"]
    status = muster.status()
    assert roles(status) == [("active", 0), ("excluded", None), ("active", 1)]
    assert (status["cycle"], [cycle["members"] for cycle in status["cycles"]]) == (0, [["node-0", "node-2"]])
