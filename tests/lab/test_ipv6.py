"""Slurm, the control channel and Ray use IPv6 on a cluster without IPv4."""

from __future__ import annotations

import json

import pytest
from tests.lab.conftest import SlurmCommand

LAB = {"nodes": 2, "ipv6": True}
ACROSS = """
import ray
ray.init()
nodes = {n["NodeManagerAddress"]: n["NodeID"] for n in ray.nodes()}
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

@ray.remote
def made(): return b"x" * 3_000_000

sizes = [len(ray.get(made.options(scheduling_strategy=At(node, soft=False)).remote())) for node in nodes.values()]
print("ray on", *sorted(nodes), "moved", *sizes)
"""


def test_nodes_have_no_ipv4_address_and_gather_all_the_same(slurm: SlurmCommand) -> None:
    assert slurm.on_node("n1", "ip", "-4", "-oneline", "address", "show", "dev", "eth0").stdout == ""
    done = slurm.run("--", "hostname", nodes=2)
    assert (done.returncode, done.stdout) == (0, "n1\n"), done.stderr
    leader = json.loads((slurm.run_dir() / "attempt-0" / "lead-0.json").read_text())
    assert leader["addresses"] == [slurm.lab.plan.address("n1"), "127.0.0.1"]


@pytest.mark.ray
@pytest.mark.slow
def test_ray_runs_on_ipv6_alone_and_moves_objects_between_nodes(slurm: SlurmCommand) -> None:
    done = slurm.run("--", "python", "-c", ACROSS, nodes=2, ray=True)
    assert done.returncode == 0, done.stderr
    nodes = " ".join(slurm.lab.plan.address(name) for name in ("n1", "n2"))
    assert f"ray on {nodes} moved 3000000 3000000" in done.stdout
