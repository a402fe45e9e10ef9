"""Groups of different nodes, job arrays, launches of ray.sub and sbatch files run on a real Slurm."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

from muster.rundir import RunPaths
from muster.runs.status import read_status

LAB = {"nodes": 4, "gpus": 2}
DOCS = Path(__file__).parents[2] / "docs"

MIXED = """
time: 30
groups:
  - {name: trainers, nodes: 2, gpus_per_node: 2}
  - {name: actors, nodes: 1, gpus_per_node: 1, cpus_per_node: 3, partition: long}
"""
NODES = """
import json, ray
ray.init(logging_level="ERROR")
nodes = [(node["Labels"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
group = ray.remote(resources={"group_actors": 0.1})(lambda: __import__("os").environ["MUSTER_GROUP"])
print(json.dumps({"nodes": nodes, "group": ray.get(group.remote())}))
"""


def mixed(slurm: SlurmCommand, *args: str, ray: bool = False) -> list[str]:
    """The arguments of a run of two groups, three nodes in all."""
    (slurm.cwd / "job.yaml").write_text(MIXED)
    kind = [] if ray else ["--no-ray"]
    return ["run", "-f", "job.yaml", "--python", slurm.python, *kind, *args]


# -- groups -------------------------------------------------------------------------------------------------------


def test_groups_are_one_job_of_one_step_led_by_the_first_group(slurm: SlurmCommand) -> None:
    look = "echo $MUSTER_GROUP on $(hostname); squeue --steps -h -o %i -j $SLURM_JOB_ID | grep -vc batch; exit 6"
    done = slurm(*mixed(slurm, "--", "bash", "-c", look))
    assert done.returncode == 6, done.stderr
    assert done.stdout.splitlines() == ["trainers on n1", "1"]
    status = slurm.status()
    assert [(node["rank"], node["host"]) for node in status["nodes"]] == list(enumerate(slurm.hosts()))
    job = slurm.slurm("scontrol", "show", "job", status["job_id"]).stdout
    assert re.findall(r"NumNodes=(\d+)", job) == ["2", "1"]
    assert set(re.findall(r"TimeLimit=(\S+)", job)) == {"00:30:00"}
    wait_for("the end", lambda: re.findall(r"JobState=(\S+)", _show(slurm, status["job_id"])) == ["FAILED"] * 2)


def _show(slurm: SlurmCommand, job_id: str) -> str:
    return slurm.slurm("scontrol", "show", "job", job_id).stdout


@pytest.mark.ray
def test_ray_s_nodes_carry_their_group_as_label_and_resource_and_have_its_gpus(slurm: SlurmCommand) -> None:
    done = slurm(*mixed(slurm, "--", "python", "-c", NODES, ray=True))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])  # Ray may have had something to say before
    nodes = sorted((int(labels["muster.io/rank"]), labels["muster.io/group"], has) for labels, has in found["nodes"])
    assert [(rank, group, has["GPU"]) for rank, group, has in nodes] == [
        (0, "trainers", 2),
        (1, "trainers", 2),
        (2, "actors", 1),
    ]
    assert [(has.get("group_trainers"), has.get("group_actors")) for _, _, has in nodes] == [(1, None)] * 2 + [
        (None, 1)
    ]
    assert nodes[2][2]["CPU"] == 3
    assert found["group"] == "actors"


ENGINES = """
groups:
  - {name: trainers, nodes: 1, gpus_per_node: 2}
  - {name: engines, nodes: 2, gpus_per_node: 1, ray: false}
services:
  engine:
    group: engines
    command: |
      echo "$MUSTER_GROUP on $(hostname) ${RAY_ADDRESS-without Ray}" > {dir}/index.html
      exec python -m http.server {http} --bind {address} --directory {dir}
    ports: {http: auto}
  sandbox: {kind: sandbox}
"""
TRAINER = """
import json, os, ray, urllib.request
from muster.sandbox import Client
ray.init(logging_level="ERROR")
urls = os.environ["MUSTER_SERVICE_ENGINE_URLS"].split(",")
with Client(os.environ["MUSTER_SERVICE_SANDBOX"]) as sandbox:
    reward = sandbox.execute("print(6 * 7)").stdout
engines = [urllib.request.urlopen(url).read().decode() for url in urls]
print(json.dumps({"ray": len(ray.nodes()), "engines": engines, "reward": reward}))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_engines_without_ray_and_a_sandbox_run_beside_a_trainer_in_one_job(slurm: SlurmCommand) -> None:
    (slurm.cwd / "job.yaml").write_text(ENGINES)
    done = slurm("run", "-f", "job.yaml", "--python", slurm.python, "--", "python", "-c", TRAINER)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ray"] == 1 and found["reward"] == "42\n"
    assert found["engines"] == [f"engines on {host} without Ray\n" for host in slurm.hosts()[1:]]


def test_a_node_of_the_second_group_that_fails_is_named_and_not_taken_for_the_leader(slurm: SlurmCommand) -> None:
    done = slurm(*mixed(slurm, "--setup", '[ "$SLURM_PROCID" != 2 ]', "--", "true"))
    assert done.returncode == 125
    error = slurm.status()["error"]
    assert (error["host"], error["rank"], error["reason"]) == (slurm.hosts()[2], 2, "--setup failed with code 1")


def test_a_run_of_groups_is_stopped_by_its_job_id(slurm: SlurmCommand) -> None:
    job_id = slurm(*mixed(slurm, "--detach", "--", "bash", "-c", "echo ready; sleep 1000")).stdout.split()[1]
    slurm.wait_for_driver("ready")
    assert "stopped by" in slurm("stop", job_id).stdout
    wait_for("the end", lambda: "RUNNING" not in _show(slurm, job_id))


def test_a_pending_run_of_groups_is_cancelled_whole(slurm: SlurmCommand) -> None:
    job_id = slurm(*mixed(slurm, "--detach", "--sbatch", "hold", "--", "true")).stdout.split()[1]
    assert "cancelled before it began" in slurm("stop").stdout
    wait_for("the end", lambda: re.findall(r"JobState=(\S+)", _show(slurm, job_id)) == ["CANCELLED"] * 2)


def test_an_allocation_of_the_same_groups_is_used(slurm: SlurmCommand) -> None:
    words = mixed(slurm, "--", "bash", "-c", "echo $MUSTER_GROUP; exit 4")
    command = [sys.executable, "-m", "muster.cli.main", *words]
    done = slurm.slurm("salloc", "-N2", "--exclusive", ":", "-N1", "--exclusive", *command)
    assert (done.returncode, done.stdout) == (4, "trainers\n"), done.stderr
    assert len(slurm.hosts()) == 3


# -- arrays -------------------------------------------------------------------------------------------------------


def test_each_task_of_an_array_is_a_run_with_its_own_code(slurm: SlurmCommand) -> None:
    program = "echo task $SLURM_ARRAY_TASK_ID of $MUSTER_RUN_ID; exit $SLURM_ARRAY_TASK_ID"
    done = slurm.run("--array", "0-4:2", "--", "bash", "-c", program, nodes=1)
    assert done.returncode == 4, done.stderr
    assert [path.name.rpartition("-")[2] for path in slurm.run_dirs()] == ["0", "2", "4"]
    for path in slurm.run_dirs():
        task = int(path.name.rpartition("-")[2])
        assert f"{path.name} {'failed' if task else 'succeeded'}: " in done.stderr
        status = read_status(RunPaths(str(path)))
        assert (status["exit_code"], status["job_id"].partition("_")[2]) == (task, str(task))
        assert (path / "attempt-0" / "logs" / "driver.log").read_text() == f"task {task} of {path.name}\n"
        assert f"(muster logs -f {path.name})" in (path / f"slurm-{status['job_id']}.out").read_text()


def test_one_task_of_an_array_is_stopped_and_the_others_go_on(slurm: SlurmCommand) -> None:
    waiting = "echo ready; until [ -e go ]; do sleep 0.1; done; true"
    done = slurm.run("--detach", "--array", "1-3%2", "--", "bash", "-c", waiting, nodes=1)
    runs = dict(line.split("\t") for line in done.stdout.splitlines())
    first, second, third = runs
    assert [job_id.partition("_")[2] for job_id in runs.values()] == ["1", "2", "3"]
    logs = [path / "attempt-0" / "logs" / "driver.log" for path in slurm.run_dirs()[:2]]
    wait_for("two drivers", lambda: all(log.exists() and "ready" in log.read_text() for log in logs))
    assert "cancelled before it began" in slurm("stop", third).stdout
    assert "stopped by" in slurm("stop", runs[first]).stdout
    assert json.loads(slurm("status", "--json", runs[second]).stdout)["state"] == "running"
    (slurm.cwd / "go").touch()
    assert slurm.ended_job(runs[second])["JobState"] == "COMPLETED"
    codes = {path.name: read_status(RunPaths(str(path)))["exit_code"] for path in slurm.run_dirs()}
    assert codes == {first: 143, second: 0, third: 143}


# -- from elsewhere -----------------------------------------------------------------------------------------------


def test_a_launch_of_ray_sub_runs_with_its_variables(slurm: SlurmCommand) -> None:
    slurm.env |= {
        "COMMAND": "hostname; echo $SETTING $RAY_ENABLE_UV_RUN_RUNTIME_ENV $OMP_NUM_THREADS $SLURM_MASTER_NODE; exit 3",
        "GPUS_PER_NODE": "2",
        "SETUP_COMMAND": "export SETTING=set",
        "BASE_LOG_DIR": str(slurm.cwd / "logs"),
        "PORT": "6379",
    }
    done = slurm("run", "--from-env", "--nodes=2", "--no-ray", "--python", slurm.python)
    assert (done.returncode, done.stdout) == (3, "n1\nset 0 16 n1\n"), done.stderr
    assert "PORT has no effect" in done.stderr
    (run,) = (slurm.cwd / "logs").iterdir()
    assert "#SBATCH --gpus-per-node=2" in (run / "job.sh").read_text()


@pytest.mark.slow
@pytest.mark.ray
def test_the_sbatch_file_of_the_documentation_works_as_it_is_written(slurm: SlurmCommand) -> None:
    (script,) = re.findall(
        r"```bash\n(#!/bin/bash\n.*?)```", (DOCS / "how-to" / "keep-your-sbatch.md").read_text(), re.DOTALL
    )
    (slurm.cwd / "mine.sh").write_text(script)
    (slurm.cwd / "train.py").write_text("import ray; ray.init(); print(len(ray.nodes()), 'nodes'); raise SystemExit(5)")
    slurm.env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), slurm.env["PATH"]])
    job_id = slurm.slurm("sbatch", "--parsable", "mine.sh").stdout.strip()
    job = slurm.ended_job(job_id)
    (output,) = slurm.cwd.glob(f"*{job_id}.out")
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "5:0"), output.read_text()
    assert "2 nodes" in output.read_text()
