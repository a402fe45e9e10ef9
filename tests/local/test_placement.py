"""`muster.placement` works on this machine with declared GPUs, in an environment that has only Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.placement import scenarios
from tests.ray_alone import ray_alone
from tests.ray_turns import turn
from tests.running import MusterCommand, wait_for

pytestmark = pytest.mark.ray

SCENARIOS = Path(scenarios.__file__)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MusterCommand]:
    """Two nodes with two GPUs each, and nothing but Ray to import."""
    cwd = tmp_path_factory.mktemp("cluster")
    python = ray_alone(cwd / "venv")
    muster = MusterCommand(cwd, python, {"HOME": str(cwd), "XDG_STATE_HOME": str(cwd / "state")})
    size = ("--nodes", "2", "--cpus-per-node", "4", "--gpus-per-node", "2")
    with turn():
        done = muster("up", "--backend", "local", *size, "--python", python, "--env", "PYTHONPATH=", timeout=400)
    try:
        assert done.returncode == 0, done.stderr
        yield muster
    finally:
        muster("down")


def test_without_the_run_there_is_no_muster_in_that_environment(cluster: MusterCommand) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for module, there in (("muster", False), ("pydantic", False), ("ray", True)):
        command = [cluster.python, "-c", f"import {module}"]
        assert (subprocess.run(command, env=env, cwd="/", capture_output=True).returncode == 0) is there, module


@pytest.mark.slow
def test_what_is_promised_of_placement_holds_with_ray_alone(cluster: MusterCommand) -> None:
    done = cluster("run", "--in", cluster.run_dir().name, "--", "python", str(SCENARIOS), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    holds = [line.removeprefix("holds: ") for line in done.stdout.splitlines() if line.startswith("holds: ")]
    assert holds == [scenario.__name__ for scenario in scenarios.SCENARIOS]
    assert f"muster is {cluster.run_dir()}/muster-library.zip/muster/__init__.py" in done.stdout


OWNER = """
import os, ray, sys, time
from muster.placement import ManagedSubprocess, Model, Probe, Replicas, build_pg
ray.init(namespace="owner", log_to_driver=False, logging_level="error")
program = {"python_args": ["-S", "-c", "import time; time.sleep(1000)"]}
model = Model("m", gpus_per_rank=0)
left = Replicas("left", model, probe=Probe("none"), detached=True, **program).start()
single = ManagedSubprocess.spawn("single", build_pg([{"CPU": 1}], "PACK", name="single"), 0, num_gpus=0, **program)
with Replicas("bound", model, probe=Probe("none"), **program):
    print("pid", os.getpid(), flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def owner(cluster: MusterCommand) -> Iterator[int]:
    """The process of a driver that has a server, one that outlives it, and a single program that does, too."""
    (cluster.cwd / "owner.py").write_text(OWNER)
    guest = cluster.start("run", "--in", cluster.run_dir().name, "--", "python", "owner.py")
    try:
        assert guest.stdout is not None
        yield next(int(line.split()[1]) for line in guest.stdout if line.startswith("pid "))
    finally:
        guest.terminate()
        guest.communicate(timeout=180)


def listed(cluster: MusterCommand) -> dict[str, dict[str, Any]]:
    done = cluster("programs", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {each["name"]: each for each in [*found["programs"], *found["groups"]]}


def test_ps_tells_what_runs_and_whose_it_is_and_reap_ends_what_a_killed_driver_left(
    cluster: MusterCommand, owner: int
) -> None:
    before = listed(cluster)
    assert set(before) == {"left/1/0", "left/1/0.0", "bound/1/0", "bound/1/0.0", "single"}
    assert all(each["owned"] is True and each["owner"]["pid"] == owner for each in before.values())
    assert cluster("reap", "--yes").stdout == "ended: nothing was without an owner\n"
    os.kill(owner, signal.SIGKILL)

    def without_the_bound() -> dict[str, dict[str, Any]] | None:
        found = listed(cluster)
        left = any(name.startswith("bound") for name in found) or any(each["owned"] for each in found.values())
        return None if left else found

    after = wait_for("what belonged to the driver to end with it", without_the_bound)
    assert set(after) == {"left/1/0", "left/1/0.0", "single"}
    assert os.path.exists(f"/proc/{after['single']['pid']}")
    look = cluster("reap", "--dry-run").stdout
    assert "left/1/0.0" in look and f"none: process {owner}" in look
    ended = json.loads(cluster("reap", "--yes", "--json", "--grace", "1").stdout)
    assert [program["name"] for program in ended["programs"]] == ["left/1/0.0", "single"]
    assert [group["name"] for group in ended["groups"]] == ["left/1/0"]
    pids = [each["pid"] for each in ended["programs"]]
    wait_for("the programs to be gone", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert cluster("programs").stdout == "nothing is placed on the cluster\n"


def test_a_run_without_ray_has_nothing_placed_on_it(muster: MusterCommand) -> None:
    muster.local("--detach", "--", "bash", "-c", "echo ready; sleep 1000")
    muster.wait_for_driver("ready")
    assert "has no Ray cluster: nothing is placed on it" in muster("ps").stderr
    assert muster("stop").returncode == 0
    assert "has ended" in muster("reap", "--yes", muster.run_dir().name).stderr
    assert "cannot ask for confirmation here: give --yes" in muster("reap").stderr
