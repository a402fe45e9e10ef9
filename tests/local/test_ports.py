"""Runs get ports in a namespace whose ephemeral range begins at 9000, as on some DGX and GB200 systems."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from tests.running import MusterCommand

EPHEMERAL = range(9000, 65001)
NEMO_RL = range(1200, 9000)  # all of its bands: nothing lies between them

# Everything that Muster chooses a port for, asked for in one process.
ALLOCATORS = """
import json, sys
from dataclasses import replace
from pathlib import Path
from muster.agent.job import Identity, Job
from muster.agent.gang.master_port import take_master_port
from muster.ports.blocks import take_block
from muster.ports import socket_leases as services
from muster.rundir import RunPaths
from muster.ports import file_leases as placement
from muster.torch.launch_env import step_port

run = RunPaths("/runs/train-20260101T000000-ab12")
job = Job(**{**dict.fromkeys(Job.__dataclass_fields__), "groups": [], "nodes": 2, "ray": False})
identity = Identity(node_index=0, host="n0", run=run, attempt=run.attempt(0), local=False)
ray = take_block("a node of 128 CPUs", 1000, smallest=300)
others = [take_block("virtual", 100, smallest=50)]
masters = [take_master_port(identity, job, cycle) for cycle in range(2)]
leases = [services.take(f"service {number}") for number in range(20)]
placed = [placement.lease_port(directory=Path(sys.argv[1])) for _ in range(10)]
print(json.dumps({
    "ray": list(ray.block.ports()),
    "others": [port for one in others for port in one.block.ports()],
    "masters": [master.number for master in masters],
    "services": [lease.number for lease in leases],
    "placement": placed,
    "torchrun": [step_port("4711", "0")],
}))
"""

# One process of a gang: tells what it and the daemons of its node were given.
RANK = """
import json, os, re, sys
from pathlib import Path
import ray
ray.init()
told = {"MASTER_PORT": int(os.environ["MASTER_PORT"]), "gcs": int(os.environ["RAY_ADDRESS"].rpartition(":")[2])}
told["service"] = int(os.environ["MUSTER_SERVICE_JUDGE"].rpartition(":")[2])
for entry in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        line = entry.read_bytes().replace(b"\\0", b" ").decode(errors="replace")
        same = os.readlink(entry.with_name("ns") / "net") == os.readlink("/proc/self/ns/net")
    except OSError:
        continue
    if same and "/raylet " in line.split("--", 1)[0] + " ":
        for name, port in re.findall(r"--(\\w*_port)=(\\d+)", line):
            told[f"{entry.parent.name} {name}"] = int(port)
assert ray.get(ray.remote(lambda: 7).remote()) == 7
print("told", json.dumps(told), flush=True)
"""

JOB = """
nodes: 2
procs_per_node: 1
services:
  judge:
    command: [python, -m, http.server, "{http}"]
    ports: {http: auto}
    ready: {tcp: http}
command: [python, rank.py]
"""


@pytest.fixture
def narrow() -> list[str]:
    """Words that run a command in a network namespace whose ephemeral range is 9000-65000; it ends with the command."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    sysctl = f"net.ipv4.ip_local_port_range={EPHEMERAL[0]} {EPHEMERAL[-1]}"
    return ["unshare", "--net", "sh", "-ec", f'ip link set lo up; sysctl -qw "{sysctl}"; exec "$@"', "sh"]


def chosen_badly(ports: Sequence[int]) -> list[int]:
    return [port for port in ports if port in EPHEMERAL or port in NEMO_RL or not 1024 <= port <= 65535]


def test_every_allocator_stays_out_of_the_ephemeral_range_and_of_nemo_rl_s_bands(
    narrow: list[str], tmp_path: os.PathLike[str]
) -> None:
    done = subprocess.run(
        [*narrow, sys.executable, "-c", ALLOCATORS, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    given = json.loads(done.stdout)
    assert {name: chosen_badly(ports) for name, ports in given.items()} == {name: [] for name in given}
    several = [port for name, ports in given.items() if name != "torchrun" for port in ports]
    assert len(several) == len(set(several)), given
    assert len(given["ray"]) >= 300


@pytest.mark.slow
@pytest.mark.ray
def test_ray_a_gang_and_a_service_stay_out_of_them_in_a_run(narrow: list[str], muster: MusterCommand) -> None:
    (muster.cwd / "rank.py").write_text(RANK)
    (muster.cwd / "job.yaml").write_text(JOB)
    command = [*narrow, sys.executable, "-m", "muster.cli.main", "run", "--backend", "local", "--python", muster.python]
    with subprocess.Popen(
        [*command, "-f", "job.yaml"],
        cwd=muster.cwd,
        env={**os.environ, **muster.env},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    told = [json.loads(line.partition("told ")[2]) for line in out.splitlines() if "told " in line]
    assert told, out
    assert {name: chosen_badly([port]) for one in told for name, port in one.items() if chosen_badly([port])} == {}
    workers = [name for name in told[0] if name.endswith("max_worker_port")]
    assert len(workers) == 2, told
