"""Spares on this machine replace lost nodes, restarts are counted, and the run ends with the right reason."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.ray_daemons import daemon_below
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
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    reason = "the agent of node-1 is gone: its connection ended"
    told = ["cycle 0 resume 0", f"muster: cycle 1: {reason}", "cycle 1 resume 1", f"because: {reason}"]
    assert out.splitlines() == told
    where = f"muster: the driver's output is in {run}/attempt-0/logs/driver.log (muster logs -f {run.name})"
    assert [line for line in (run / "job.out").read_text().splitlines() if not line.startswith("[muster")] == [where]
    status = muster.status()
    assert [(c["cycle"], c["members"], c["spares"], c["reason"]) for c in status["cycles"]] == [
        (0, ["node-0", "node-1", "node-2"], ["node-3"], reason),
        (1, ["node-0", "node-2", "node-3"], [], "the driver exited with 0"),
    ]
    logs = run / "attempt-0" / "logs"
    assert (logs / "driver.log").read_text()[status["cycles"][1]["log_start"] :].startswith("cycle 1 ")
    assert muster("logs", "--cycle", "0").stdout == f"cycle 0 resume 0\nmuster: cycle 1: {reason}\n"
    assert muster("logs", "--cycle", "1").stdout == f"cycle 1 resume 1\nbecause: {reason}\n"
    assert not list(logs.glob("cycle-*"))  # the output is stored once
    assert (status["error"], status["state"], status["exit_code"]) == (None, "succeeded", 0)


def test_without_a_budget_a_lost_node_ends_the_run_by_name(muster: MusterCommand) -> None:
    options = ("--spares", "1", "--on-node-loss", "restart", "--max-restarts", "0")
    process = muster.start(*muster.local_args(*options, "--", "bash", "-c", WAIT_ONCE))
    muster.wait_for_driver("cycle 0")
    kill(muster, 1)
    _, err = process.communicate(timeout=180)
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
    out, err = process.communicate(timeout=180)
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


def test_on_failure_all_leave_with_the_same_code_spares_too(muster: MusterCommand) -> None:
    done = muster.local("--spares", "2", "--", "bash", "-c", "exit 9")
    assert done.returncode == 9
    steps = (muster.run_dir() / "attempt-0" / "steps.log").read_text()
    said = sorted(line.partition("task ")[2] for line in steps.splitlines())
    assert said == [f"{rank}: Exited with exit code 9" for rank in range(4)]


REPLACED = """
import time, ray
ray.init(log_to_driver=False)
def alive():
    labels = [node["Labels"] for node in ray.nodes() if node["Alive"]]
    return sorted((int(known["muster.io/rank"]), int(known["muster.io/node"])) for known in labels)
print("before", alive(), flush=True)
while (now := alive()) != [(0, 0), (1, 2)]:
    assert now in ([(0, 0), (1, 1)], [(0, 0)]), f"two live nodes with one rank: {now}"
    time.sleep(0.02)
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
    os.kill(daemon_below(muster.agent_pid(1), "raylet"), signal.SIGKILL)  # or it would tell Ray that it exits
    kill(muster, 1)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    told = [line for line in out.splitlines() if line.startswith(("before", "after"))]
    assert told == ["before [(0, 0), (1, 1)]", "after [(0, 0), (1, 2)] node-2"]
    status = muster.status()
    assert roles(status) == [("active", 0), ("excluded", None), ("active", 1)]
    assert (status["cycle"], [cycle["members"] for cycle in status["cycles"]]) == (0, [["node-0", "node-2"]])


def ill_while(path: Path) -> str:
    """A check that the spare fails while the file is there."""
    return f"[ $MUSTER_RANK != 2 ] || [ ! -e {shlex.quote(str(path))} ] || {{ echo it is too warm; false; }}"


def watched(line: str) -> tuple[int, bool] | None:
    event = json.loads(line)
    return (event["rank"], event["healthy"]) if event["event"] == "node" else None


def test_a_spare_that_falls_ill_is_shown_and_never_promoted_until_it_has_recovered(muster: MusterCommand) -> None:
    ill = muster.cwd / "ill"
    options = ("--spares", "1", "--on-node-loss", "restart", "--health-check", ill_while(ill))
    once = "echo cycle $MUSTER_CYCLE; [ $MUSTER_CYCLE != 0 ] || sleep 1000"
    args = muster.local_args(*options, "--spare-check-interval", "0.2", "--", "bash", "-c", once)
    process = muster.start(*args)
    run = muster.wait_for_driver("cycle 0")
    events = run / "attempt-0" / "events-0.jsonl"

    def seen(healthy: bool) -> bool:
        """The spare's last word."""
        told = [known for line in events.read_text().splitlines() if (known := watched(line)) and known[0] == 2]
        return bool(told) and told[-1][1] is healthy

    ill.touch()
    wait_for("the spare to fall ill", lambda: seen(False))
    status = muster.status()
    assert status["nodes"][2]["ailment"] == "--health-check failed: it is too warm (code 1)"
    assert "unhealthy: node-2: --health-check failed: it is too warm" in muster("status").stdout
    ill.unlink()
    wait_for("the spare to recover", lambda: seen(True))
    kill(muster, 1)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert roles(muster.status()) == [("active", 0), ("excluded", None), ("active", 1)]


def test_without_a_healthy_spare_a_lost_node_is_the_end_and_the_reason_names_the_ill_one(muster: MusterCommand) -> None:
    ill = muster.cwd / "ill"
    options = ("--spares", "1", "--on-node-loss", "restart", "--health-check", ill_while(ill))
    args = muster.local_args(*options, "--spare-check-interval", "0.2", "--", "bash", "-c", WAIT_ONCE)
    process = muster.start(*args)
    run = muster.wait_for_driver("cycle 0")
    ill.touch()
    events = run / "attempt-0" / "events-0.jsonl"
    wait_for("the spare to fall ill", lambda: '"healthy": false' in events.read_text())
    kill(muster, 1)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert "1 usable node is left, and the job needs 2; node-2 is unhealthy: --health-check failed: it is too" in err


@pytest.mark.ray
def test_a_spare_that_cannot_import_ray_is_left_out_and_the_job_goes_on(muster: MusterCommand) -> None:
    broken = muster.cwd / "broken"
    (broken / "ray").mkdir(parents=True)
    (broken / "ray" / "__init__.py").write_text("raise ImportError('no such Ray')")
    setup = f"[ $MUSTER_RANK != 2 ] || export PYTHONPATH={shlex.quote(str(broken))}"
    go_on = "until grep -q '\"excluded\"' $MUSTER_OUTPUT_DIR/../attempt-0/events-0.jsonl; do sleep 0.1; done"
    options = ("--spares", "1", "--cpus-per-node", "1", "--setup", setup)
    done = muster.local(*options, "--", "bash", "-c", go_on, ray=True)
    assert done.returncode == 0, done.stderr
    assert roles(muster.status()) == [("active", 0), ("active", 1), ("excluded", None)]
