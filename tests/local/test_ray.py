"""A real Ray cluster on this machine starts, reports failures with their cause, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.running import MusterCommand, wait_for

from muster.agent.ray.node import TOKENS_SINCE

pytestmark = pytest.mark.ray

KNOWS_TOKENS = tuple(map(int, version("ray").split(".")[:2])) >= TOKENS_SINCE
EXAMPLE = Path(__file__).parents[2] / "examples" / "hello_cluster.py"


EXAMPLE_AND_DETAILS = """
import json, os, runpy, sys, ray
runpy.run_path(sys.argv[1])
described = [(node["NodeName"], node["Labels"]["example.com/site"], node["Resources"]["disk"]) for node in ray.nodes()]
print(json.dumps(described))
variables = "NRL_JOB_START_EPOCH", "NRL_RAY_READY_EPOCH", "REMOVED_FOR_RAY"
print(json.dumps([os.environ[name] for name in variables]))
print("in a task:", ray.get(ray.remote(lambda: os.environ.get("REMOVED_FOR_RAY")).remote()))
"""


def test_two_nodes_come_up_as_described_run_the_driver_and_leave_no_logs_of_rays(muster: MusterCommand) -> None:
    described = ["--ray-label", "example.com/site=x", "--ray-resource", "disk=2", "--ray-start-arg=--node-name=chosen"]
    muster.env["REMOVED_FOR_RAY"] = "set"
    driver = ["--ray-unset", "REMOVED_*", "--", "python", "-c", EXAMPLE_AND_DETAILS, str(EXAMPLE)]
    done = muster.local(*described, *driver, nodes=2, ray=True)
    assert done.returncode == 0, done.stderr
    assert f"2 alive nodes in run {muster.run_dir().name}" in done.stdout
    *_, nodes, variables, task = done.stdout.splitlines()
    assert json.loads(nodes) == [["chosen", "x", 2.0]] * 2
    timings = muster.status()["timings"]
    start, ready, kept = json.loads(variables)
    assert (start, ready) == (f"{timings['job_start']:.3f}", f"{timings['ray_ready']:.3f}")
    assert (kept, task) == ("set", "in a task: None")
    order = ["job_start", "lead_ready", "ray_head_ready", "ray_ready", "driver_start", "driver_end", "ended"]
    assert [timings[name] for name in order] == sorted(timings[name] for name in order)
    assert not archives(muster)


def archives(muster: MusterCommand) -> dict[str, list[str]]:
    """The archives of Ray's logs, and what is in them."""
    found = {}
    for path in sorted(muster.run_dir().glob("attempt-0/logs/ray/*")):
        with tarfile.open(path) as tar:
            found[path.name] = tar.getnames()
    return found


HOLD = """
import os, time, ray
ray.init(log_to_driver=False)
print("ready", os.environ["RAY_ADDRESS"], flush=True)
time.sleep(1000)
"""


def test_a_killed_raylet_fails_the_run_by_name_and_strangers_are_refused(muster: MusterCommand) -> None:
    closed = ["--require-auth"] if KNOWS_TOKENS else []
    process = muster.start(*muster.local_args(*closed, "--ray-logs-max", "64K", "--", "python", "-c", HOLD, ray=True))
    run = muster.wait_for_driver("ready")
    address = (run / "attempt-0" / "logs" / "driver.log").read_text().partition("ready ")[2].split()[0]
    stranger = "import ray; ray.init(); print('connected')"
    env = {**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled"}
    refused = subprocess.run([muster.python, "-c", stranger], env=env, capture_output=True, text=True, timeout=120)
    if KNOWS_TOKENS:
        assert refused.returncode != 0 and "connected" not in refused.stdout
    else:
        events = (run / "attempt-0" / "events-0.jsonl").read_text()
        assert events.count("does not support tokens (2.52 and newer do): every user who can reach this cluster") == 1
    os.kill(_raylet_below(muster.agent_pid(1)), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 125
    assert "node-1" in err and "Ray's raylet was ended by SIGKILL" in err
    kept = archives(muster)
    assert list(kept) == ["node-0.tar.gz", "node-1.tar.gz"]
    assert {"node-0/gcs_server.out", "node-0/raylet.out"} <= set(kept["node-0.tar.gz"])
    assert "node-1/raylet.out" in kept["node-1.tar.gz"]
    assert all(path.stat().st_size <= 64 * 1024 for path in run.glob("attempt-0/logs/ray/*"))
    listed = muster("logs", "--ray", "--node", "node-1")
    assert "node-1/raylet.out" in listed.stdout and "node-0" not in listed.stdout
    assert "Raylet" in muster("logs", "--ray", "--node", "1", "--file", "raylet.out").stdout


def test_with_ray_logs_never_a_failed_run_leaves_none(muster: MusterCommand) -> None:
    done = muster.local("--ray-logs", "never", "--", "false", nodes=1, ray=True)
    assert done.returncode == 1, done.stderr
    assert not archives(muster)
    refused = muster("logs", "--ray")
    assert refused.returncode == 1 and "--ray-logs never" in refused.stderr


def test_a_ray_start_that_fails_is_named_with_its_last_lines(muster: MusterCommand) -> None:
    muster.env["RAY_START_HOOK"] = "no.such.hook"
    done = muster.local("--", "true", nodes=2, ray=True)
    assert done.returncode == 125
    assert "`ray start` exited with 1" in done.stderr
    assert "| " in done.stderr and "No module named 'no'" in done.stderr


@pytest.mark.skipif(KNOWS_TOKENS, reason="this Ray knows tokens; `make test-ray-oldest` has one that does not")
def test_where_tokens_are_required_a_ray_without_them_is_refused_and_not_tried_again(muster: MusterCommand) -> None:
    done = muster.local("--require-auth", "--", "true", nodes=1, ray=True)
    assert done.returncode == 125
    assert "does not support tokens (2.52 and newer do), and --require-auth requires them" in done.stderr
    assert "try 2 of" not in (muster.run_dir() / "attempt-0" / "events-0.jsonl").read_text()


FAILS_ONCE = """
import os
def hook(ray_params, head):
    mark = f"failed-once-{bool(head)}"
    if not os.path.exists(mark):
        open(mark, "w").close()
        logs = os.path.join(ray_params.temp_dir, "session_latest", "logs")  # as if it had failed later
        os.makedirs(logs)
        with open(os.path.join(logs, "raylet.out"), "w") as file:
            file.write("of the first try")
        raise RuntimeError("as on a bad day")
"""


def test_a_head_and_a_worker_that_fail_once_are_tried_again_with_reason_and_logs_kept(muster: MusterCommand) -> None:
    (muster.cwd / "badday.py").write_text(FAILS_ONCE)
    path = os.pathsep.join([str(muster.cwd), os.environ.get("PYTHONPATH", "")])
    muster.env.update(RAY_START_HOOK="badday.hook", PYTHONPATH=path)
    done = muster.local("--ray-logs", "always", "--", "true", nodes=2, ray=True)
    assert done.returncode == 0, done.stderr
    kept = archives(muster)
    # On a busy machine a second try may fail as well: Ray's raylet aborts if its agent takes longer than 15 s to start.
    assert {"node-0.tar.gz", "node-0.try1.tar.gz", "node-1.tar.gz", "node-1.try1.tar.gz"} <= set(kept)
    assert kept["node-1.try1.tar.gz"] == ["node-1.try1/raylet.out"]
    events = (muster.run_dir() / "attempt-0" / "events-0.jsonl").read_text()
    assert events.count("`ray start` exited with 1; try 2 of 3 follows") == 2  # the head's, and the worker outlasted it
    assert "as on a bad day" in (muster.run_dir() / "attempt-0" / "logs" / "node-0001.log").read_text()


def test_pinned_ports_that_are_taken_are_named(muster: MusterCommand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = muster.local("--port-base", str(port), "--", "true", nodes=1, ray=True)
    assert done.returncode == 125
    assert f"no free ports for Ray: something listens in {port}-{port + 99}" in done.stderr


def _raylet_below(agent: int) -> int:
    """The raylet among the agent's descendants."""

    def look() -> int | None:
        listing = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,comm="], capture_output=True, text=True).stdout
        rows = [line.split(None, 2) for line in listing.splitlines()]
        family = {agent}
        for _ in range(6):
            family |= {int(pid) for pid, parent, _ in rows if int(parent) in family}
        return next((int(pid) for pid, _, name in rows if int(pid) in family and name == "raylet"), None)

    return wait_for("a raylet", look)


COUNT = """
import ray
ray.init(log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()), "nodes")
"""

STAY = """
import os, time
open("connected", "w").close()
while not os.path.exists("alone"): time.sleep(0.1)
time.sleep(4)
print(sum(node["Alive"] for node in ray.nodes()), "nodes")
"""


def test_an_idle_cluster_takes_drivers_and_ends_only_when_ray_has_no_job_any_more(muster: MusterCommand) -> None:
    up = muster.start("up", "--backend", "local", "-N", "2", "--python", muster.python, "--idle-timeout", "2s")
    attempt = wait_for("the run", muster.run_dirs)[0] / "attempt-0"
    wait_for("its start", (attempt / "canary").exists)
    held = attempt / "sessions" / "test"
    held.parent.mkdir()
    held.touch()  # until there is a job of Ray's
    _, err = up.communicate(timeout=120)
    assert up.returncode == 0 and "Ray is up on 2 nodes" in err, err
    # A driver that Muster knows nothing of: only Ray's own table tells that the cluster is in use.
    token = str(attempt.parent / "ray-token")
    env = {**os.environ, "RAY_ADDRESS": muster.status()["ray"]["address"], "RAY_AUTH_MODE": "token"}
    stranger = subprocess.Popen(
        [muster.python, "-c", COUNT + STAY],
        cwd=muster.cwd,
        env={**env, "RAY_AUTH_TOKEN_PATH": token},
        stdout=subprocess.PIPE,
        text=True,
    )
    guest = muster("run", "--in", attempt.parent.name, "--", "python", "-c", COUNT)
    assert guest.returncode == 0 and guest.stdout.endswith("2 nodes\n"), guest.stdout + guest.stderr
    wait_for("the stranger", (muster.cwd / "connected").exists)
    held.unlink()
    (muster.cwd / "alone").touch()
    assert stranger.communicate(timeout=180)[0] == "2 nodes\n2 nodes\n"
    wait_for("the cluster to end", (attempt / "outcome").exists)
    assert muster.status()["state"] == "succeeded"
    assert "the cluster was unused for 2 s and ends" in muster("logs").stdout
