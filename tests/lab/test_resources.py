"""Resources of a node are counted inside the step; jobs of two users share a node without an effect on each other."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sysconfig
from typing import Any

import pytest
from tests.lab.conftest import REPOSITORY, SlurmCommand

LAB = {"nodes": 2}

SAYS_RESOURCES = """
import json, ray
ray.init(log_to_driver=False)
print("RESOURCES", json.dumps([n["Resources"] for n in ray.nodes()]), flush=True)
"""

HOLD = """
import os, ray, time
ray.init(log_to_driver=False)
print("in", len(ray.nodes()), flush=True)
while not os.path.exists(os.environ["MUSTER_OUTPUT_DIR"] + "/go"):
    time.sleep(0.1)
print("works on", ray.get(ray.remote(lambda: 7).remote()), flush=True)
time.sleep(3600)
"""


def test_a_node_with_other_gpus_than_asked_for_is_refused_by_name(slurm: SlurmCommand) -> None:
    lose_one = "if [ $SLURMD_NODENAME = n2 ]; then export CUDA_VISIBLE_DEVICES=0; fi"
    done = slurm.run("--gpus-per-node", "2", "--setup", lose_one, "--", "true", nodes=2, ray=True)
    assert done.returncode == 125
    error = slurm.status()["error"]
    assert (error["host"], error["phase"]) == ("n2", "resources")
    assert "has 1 GPU, 2 were asked for" in error["reason"]


def test_a_node_with_fewer_cpus_than_asked_for_is_refused_by_name(slurm: SlurmCommand) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs, to take one away")
    confine = f"if [ $SLURMD_NODENAME = n2 ]; then taskset -pc {min(os.sched_getaffinity(0))} $$; fi"
    done = slurm.run("--cpus-per-node", "2", "--setup", confine, "--", "true", nodes=2, ray=True)
    assert done.returncode == 125
    assert slurm.status()["error"]["host"] == "n2"
    assert "may use 1 CPUs, 2 were asked for" in slurm.status()["error"]["reason"]


def test_ray_gets_the_step_s_gpus_and_memory_and_tells_workers_from_a_dedicated_head(slurm: SlurmCommand) -> None:
    script = slurm.cwd / "says.py"
    script.write_text(SAYS_RESOURCES)
    limits = ("--gres", "gpu:2", "--mem", "2G", "--object-store-memory", "100M", "--dedicated-head")
    done = slurm.run(*limits, "--", "python", str(script), nodes=2, ray=True)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESOURCES")]
    head, worker = sorted(json.loads(line.removeprefix("RESOURCES")), key=lambda node: "ray_head" not in node)
    assert "CPU" not in head and "GPU" not in head and "worker_units" not in head
    assert (worker["GPU"], worker["worker_units"]) == (2, 2)
    assert worker["object_store_memory"] == 100 * 1024**2
    assert worker["memory"] == (2048 - 100) * 1024**2


def test_jobs_of_two_users_share_a_node(slurm: SlurmCommand) -> None:
    other = UserCommand(slurm, "games")
    if reason := other.why_not():
        pytest.skip(reason)
    slurm.on_node("n1", "mkdir", "-m", "700", "/tmp/ray")  # as the first user of a node leaves it
    (other.cwd / "hold.py").write_text(HOLD)
    hold = str(other.cwd / "hold.py")
    for command in (slurm, other):
        shared = ("-N", "1", "-w", "n1", "--cpus-per-node", "2", "--object-store-memory", "100M")
        begun = command("run", *shared, "--detach", "--python", command.python, "--", command.python, hold)
        assert begun.returncode == 0, begun.stderr
    for command in (slurm, other):
        command.wait_for_driver("in 1")
    running = slurm.slurm("squeue", "-h", "-t", "R", "-o", "%u %N").stdout.splitlines()
    assert sorted(running) == ["games n1", "root n1"]
    temps = slurm.on_node(
        "n1", "stat", "-c", "%U %a", *slurm.on_node("n1", "sh", "-c", "ls -d /tmp/muster-*").stdout.split()
    )
    assert sorted(temps.stdout.split("\n")[:-1]) == ["games 700", "root 700"]
    assert other("stop").returncode == 0
    mark = slurm.wait_for_driver("in 1") / "output" / "go"
    mark.touch()  # the other's end must not have touched this one's Ray
    slurm.wait_for_driver("works on")
    assert slurm("stop").returncode == 0
    slurm.on_node("n1", "rmdir", "/tmp/ray")


class UserCommand(SlurmCommand):
    """`muster` as another user of the cluster, in a directory of that user's own, with the system's Python."""

    def __init__(self, slurm: SlurmCommand, name: str) -> None:
        self.user = pwd.getpwnam(name)
        home = slurm.cwd.parent / f"{slurm.cwd.name}-{name}"
        home.mkdir()
        os.chown(home, self.user.pw_uid, self.user.pw_gid)
        path = os.pathsep.join([str(REPOSITORY / "src"), sysconfig.get_path("purelib")])
        env = {**slurm.env, "HOME": str(home), "USER": name, "PYTHONPATH": path}
        super().__init__(home, "/usr/bin/python3", env, slurm.lab)

    def start(self, *args: str, **popen: Any) -> subprocess.Popen[str]:
        command = [self.python, "-m", "muster.cli.main", *args]
        return subprocess.Popen(
            command,
            cwd=self.cwd,
            env={**os.environ, **self.env},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            user=self.user.pw_uid,
            group=self.user.pw_gid,
            extra_groups=[],
        )

    def why_not(self) -> str | None:
        """Ray's compiled part is for one version of Python, and must be readable."""
        tried = self.start("--version")
        _, error = tried.communicate(timeout=180)
        return None if tried.returncode == 0 else f"the system's Python cannot run this installation: {error[-200:]}"
