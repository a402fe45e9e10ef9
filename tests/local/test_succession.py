"""After the loss of the leader another node leads and restarts the driver; two drivers never run at once."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from typing import Any

import pytest
from tests.running import MusterCommand, wait_for

from muster.election.leader_silence import STARTUP_SILENCE_S

# Each driver says who it is and when it lives, ten times a second, and waits to be lost in the first cycle.
DRIVER = """
import os, time
import shlex
cycle, log = os.environ["MUSTER_CYCLE"], os.path.join(os.environ["MUSTER_OUTPUT_DIR"], "lives")
end, announced = time.monotonic() + (600 if cycle == "0" else 1), False
while time.monotonic() < end:
    with open(log, "a") as file:
        file.write(f"{cycle} {time.time()}\\n")
    if not announced:  # only now may the test kill it: its first line is in the file
        print("cycle", cycle, os.environ.get("MUSTER_RESTART_REASON", ""), flush=True)
        announced = True
    time.sleep(0.1)
"""
OPTIONS = ("--spares", "1", "--on-node-loss", "restart")


def start(muster: MusterCommand, *options: str, nodes: int = 3) -> Any:
    (muster.cwd / "driver.py").write_text(DRIVER)
    return muster.start(*muster.local_args(*options, "--", "python", "driver.py", nodes=nodes))


def lives(muster: MusterCommand) -> list[tuple[str, float, float]]:
    """(cycle, first, last) of every driver, in the order in which they began."""
    seen: dict[str, list[float]] = {}
    for line in (muster.run_dir() / "output" / "lives").read_text().splitlines():
        cycle, when = line.split()
        seen.setdefault(cycle, []).append(float(when))
    return [(cycle, min(times), max(times)) for cycle, times in seen.items()]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_another_node_leads_when_the_leader_is_lost(muster: MusterCommand, signum: int) -> None:
    process = start(muster, *OPTIONS)
    muster.wait_for_driver("cycle 0")
    wait_for("the status to tell", lambda: muster.status()["state"] == "running")
    os.kill(muster.agent_pid(0), signum)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "muster: cycle 1: the agent of the leader node-0" in out
    status = muster.status()
    assert (status["term"], status["lead"], status["cycle"], status["state"]) == (1, 1, 1, "succeeded")
    assert [cycle["members"] for cycle in status["cycles"]] == [
        ["node-0", "node-1", "node-2"],
        ["node-1", "node-2", "node-3"],
    ]
    (first, _, last), (second, begin, _) = lives(muster)
    assert (first, second) == ("0", "1") and last < begin
    certified = (muster.run_dir() / "attempt-0" / "lead-0-gone.json").exists()
    assert certified == (signum == signal.SIGKILL)


def test_without_a_budget_the_loss_of_the_leader_ends_the_run_by_name(muster: MusterCommand) -> None:
    process = start(muster, *OPTIONS, "--max-restarts", "0")
    muster.wait_for_driver("cycle 0")
    os.kill(muster.agent_pid(0), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 125 and re.search("the leader (node-0 )?is gone", err)


@pytest.mark.slow
def test_a_second_loss_of_the_leader_ends_a_run_that_has_too_few_nodes_left(muster: MusterCommand) -> None:
    (muster.cwd / "driver.py").write_text(DRIVER.replace('cycle == "0"', "True"))
    process = muster.start(*muster.local_args(*OPTIONS, "--", "python", "driver.py", nodes=3))
    muster.wait_for_driver("cycle 0")
    os.kill(muster.agent_pid(0), signal.SIGKILL)
    muster.wait_for_driver("cycle 1")
    os.kill(muster.agent_pid(1), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 125
    assert "node-1" in err and "2 usable nodes are left, and the job needs 3" in err


def test_of_two_nodes_a_dead_spare_changes_nothing_and_a_dead_leader_ends_the_run(muster: MusterCommand) -> None:
    process = start(muster, *OPTIONS, nodes=1)
    muster.wait_for_driver("cycle 0")
    os.kill(muster.agent_pid(1), signal.SIGKILL)
    events = muster.run_dir() / "attempt-0" / "events-0.jsonl"
    wait_for("the loss to be seen", lambda: '"lost"' in events.read_text())
    seen = lives(muster)[0][2]
    wait_for("the driver to go on", lambda: lives(muster)[0][2] > seen + 1)
    os.kill(muster.agent_pid(0), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 125 and re.search("the leader (node-0 )?is gone", err)


def test_a_node_that_never_came_to_leader_is_stood_in_for(muster: MusterCommand) -> None:
    check = "[ $MUSTER_RANK != 0 ]"
    done = muster.local("--spares", "1", "--health-check", check, "--", "bash", "-c", "echo led")
    assert (done.returncode, done.stdout) == (0, "led\n"), done.stderr
    status = muster.status()
    assert (status["term"], status["lead"]) == (0, 1)
    assert [node["role"] for node in status["nodes"]] == ["excluded", "active", "active"]


def test_a_first_node_that_only_takes_long_to_start_is_waited_for(muster: MusterCommand) -> None:
    """For longer than a node may show no sign of life."""
    slow = f"[ $MUSTER_RANK != 0 ] || sleep {STARTUP_SILENCE_S + 4:g}"
    done = muster.local("--spares", "1", "--setup", slow, "--", "bash", "-c", "echo led")
    assert (done.returncode, done.stdout) == (0, "led\n"), done.stderr
    assert (muster.status()["term"], muster.status()["lead"]) == (0, 0)
    assert "waiting for node-0, the first leader: its --setup" in done.stderr


def test_members_keep_their_leader_while_it_lives(muster: MusterCommand) -> None:
    """For longer than a lease: nobody is fenced who should not be."""
    (muster.cwd / "driver.py").write_text("import time; print('ready', flush=True); time.sleep(15)")
    began = time.monotonic()
    done = muster.local(*OPTIONS, "--", "python", "driver.py", nodes=2)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 15 and muster.status()["term"] == 0


RAY_DRIVER = """
import os, time, ray
ray.init(log_to_driver=False)
labels = [node["Labels"] for node in ray.nodes() if node["Alive"]]
print("cycle", os.environ["MUSTER_CYCLE"], sorted(
    (int(known["muster.io/rank"]), int(known["muster.io/node"]), known["muster.io/role"]) for known in labels
), flush=True)
time.sleep(600 if os.environ["MUSTER_CYCLE"] == "0" else 0)
"""


@pytest.mark.ray
@pytest.mark.parametrize("on_node_loss", ["restart", "fail"])
def test_a_leader_on_whose_node_ray_does_not_start_lets_another_one_leader(
    muster: MusterCommand, on_node_loss: str
) -> None:
    """The others come only after Ray has failed there: the first leader waits until they can elect another one."""
    (muster.cwd / "driver.py").write_text(RAY_DRIVER.replace("600", "0"))
    (muster.cwd / "bad").mkdir()
    (muster.cwd / "bad" / "ray.py").write_text("raise ImportError('this node is broken')")
    failed = f"grep -q 'node is broken' {shlex.quote(str(muster.cwd))}/muster-runs/*/attempt-0/logs/node-0000.log"
    setup = f"""case $MUSTER_RANK in
      0) export PYTHONPATH={shlex.quote(str(muster.cwd))}/bad ;;
      *) until {failed}; do sleep 0.1; done ;;
    esac"""
    options = ("--spares", "1", "--on-node-loss", on_node_loss, "--cpus-per-node", "1", "--setup", setup)
    done = muster.local(*options, "--", "python", "driver.py", ray=True)
    assert done.returncode == 0, done.stderr
    status = muster.status()
    assert status["lead"] in (1, 2) and status["state"] == "succeeded"
    assert f"cycle 1 [(0, {status['lead']}, 'head'), (1, {3 - status['lead']}, 'worker')]" in done.stdout
    assert "this node is broken" in status["cycles"][0]["reason"]


@pytest.mark.ray
@pytest.mark.slow
def test_a_new_leader_has_a_ray_cluster_of_its_own(muster: MusterCommand) -> None:
    (muster.cwd / "driver.py").write_text(RAY_DRIVER)
    options = ("--spares", "1", "--on-node-loss", "replace", "--cpus-per-node", "1")
    process = muster.start(*muster.local_args(*options, "--", "python", "driver.py", ray=True))
    muster.wait_for_driver("cycle 0 [")
    os.kill(muster.agent_pid(0), signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    told = [line for line in out.splitlines() if line.startswith("cycle")]
    assert told == ["cycle 0 [(0, 0, 'head'), (1, 1, 'worker')]", "cycle 1 [(0, 1, 'head'), (1, 2, 'worker')]"]
