"""Real Ray whose control service is killed: drivers, actors and placement groups continue."""

from __future__ import annotations

import json
import os
import signal
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.ray_daemons import daemon_below
from tests.running import MusterCommand, wait_for

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(
        tuple(map(int, version("ray").split(".")[:2])) < (2, 60), reason="this Ray does not store the GCS's state"
    ),
]

REPORT = os.environ.get("GCS_RECOVERY_REPORT")  # a file for the times, of bench/gcs_recovery.py
# Each round has a task, a call to the detached actor, and a new actor. A thread looks the detached actor up and makes a
# placement group again and again, which needs the GCS and no new process. Both print what they have done, and when.
DRIVER = """
import json, os, threading, time, ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
ray.init(log_to_driver=False, namespace="n")

@ray.remote(num_cpus=0, max_restarts=0)
class Counter:
    def __init__(self): self.count = 0
    def add(self): self.count += 1; return self.count, os.getpid()

@ray.remote(num_cpus=0)
def double(number): return 2 * number

group = placement_group([{"CPU": 0.01}] * 2)
assert group.wait(180)
kept = Counter.options(name="kept", lifetime="detached").remote()
_, pid = ray.get(kept.add.remote())

def done(what, began):
    print(json.dumps({"what": what, "began": began, "ended": time.time()}) + "\\n", end="", flush=True)

def use_the_gcs():
    while not os.path.exists("enough"):
        began = time.time()
        ray.get_actor("kept")
        other = placement_group([{"CPU": 0.01}])
        assert other.wait(180)
        remove_placement_group(other)
        done("use of the GCS", began)
        time.sleep(0.1)

def thread_body():
    try:
        use_the_gcs()
    except BaseException as error:
        print("the thread failed:", repr(error), flush=True)
        os._exit(7)

thread = threading.Thread(target=thread_body)
thread.start()
round = 0
while not os.path.exists("enough"):
    round += 1
    began = time.time()
    assert ray.get(double.remote(round)) == 2 * round
    assert ray.get(kept.add.remote()) == (round + 1, pid)
    assert ray.get(Counter.remote().add.remote())[0] == 1
    done("round", began)
thread.join()
assert placement_group_table(group)["state"] == "CREATED"
print(sum(node["Alive"] for node in ray.nodes()), "nodes alive", flush=True)
"""


def reports(run: Path) -> list[dict[str, Any]]:
    """What the driver has done."""
    lines = (run / "attempt-0" / "logs" / "driver.log").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith('{"what"') and line.endswith("\n")]


def first_ended(run: Path, what: str, since: float) -> float | None:
    """When the driver had done this for the first time after it had begun with it after `since`."""
    return next((one["ended"] for one in reports(run) if one["what"] == what and one["began"] >= since), None)


def kill_and_wait(muster: MusterCommand, run: Path) -> dict[str, float]:
    """Kill the GCS; return how many seconds later it was used again, and a whole round was done."""
    gcs = daemon_below(muster.agent_pid(0), "gcs_server")
    killed = time.time()
    os.kill(gcs, signal.SIGKILL)
    used = wait_for("a use of the GCS", lambda: first_ended(run, "use of the GCS", killed))
    worked = wait_for("a round", lambda: first_ended(run, "round", killed))
    return {"used": used - killed, "round": worked - killed}


def survive(muster: MusterCommand, kills: int) -> None:
    """Kill the GCS of a run with two nodes so many times: the driver succeeds, in the same cycle."""
    process = muster.start(*muster.local_args("--", "python", "-c", DRIVER, ray=True))
    run = muster.wait_for_driver('"round"')
    seen = [kill_and_wait(muster, run) for _ in range(kills)]
    (muster.cwd / "enough").touch()
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "2 nodes alive" in (run / "attempt-0" / "logs" / "driver.log").read_text()
    status = muster.status()
    assert (status["cycle"], status["ray"]["gcs_restarts"]) == (0, kills)
    lines = (run / "attempt-0" / "events-0.jsonl").read_text().splitlines()
    restarts = [event for event in map(json.loads, lines) if event["event"] == "gcs_restart"]
    assert [event["restarts"] for event in restarts] == list(range(1, kills + 1))
    assert {event["reason"] for event in restarts} == {"Ray's gcs_server was ended by SIGKILL"}
    assert err.count("restarted with its state after") == kills
    times = "time" if kills == 1 else "times"
    assert f"control service restarted {kills} {times}" in muster("status").stdout
    if REPORT:
        kills_seen = [{**one, "gcs": event["seconds"]} for one, event in zip(seen, restarts, strict=True)]
        usual = {
            what: median([one["ended"] - one["began"] for one in reports(run) if one["what"] == what])
            for what in ("use of the GCS", "round")
        }
        Path(REPORT).write_text(json.dumps({"kills": kills_seen, "usual": usual}))


def test_a_driver_its_actors_and_placement_groups_outlive_a_killed_control_service(muster: MusterCommand) -> None:
    survive(muster, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_driver_outlives_twenty_kills_of_the_control_service(muster: MusterCommand) -> None:
    survive(muster, 20)
