"""Ranks and spares follow the topology of a real Slurm: switches, or blocks if the release supports them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.conftest import SharedLab, SlurmCommand

from muster.lab import Lab
from muster.lab.releases import version_of

# The nodes of a domain are not neighbours in the order of their names.
TOPOLOGIES = {
    "tree": ("SwitchName=leaf1 Nodes=n[1,3]", "SwitchName=leaf2 Nodes=n[2,4]", "SwitchName=spine Switches=leaf[1-2]"),
    "block": ("BlockName=block1 Nodes=n[1,3]", "BlockName=block2 Nodes=n[2,4]", "BlockSizes=2"),
}
DOMAINS = {
    "tree": {"n1": "spine.leaf1", "n3": "spine.leaf1", "n2": "spine.leaf2", "n4": "spine.leaf2"},
    "block": {"n1": "block1", "n3": "block1", "n2": "block2", "n4": "block2"},
}


@pytest.fixture(scope="module", params=list(TOPOLOGIES))
def lab(request: pytest.FixtureRequest, shared_lab: SharedLab, slurm_prefix: Path | None) -> Lab:
    plugin: str = request.param
    if plugin == "block" and (version_of(slurm_prefix) or "").startswith("22.05"):
        pytest.skip("Slurm 22.05 has no blocks")
    conf = (f"TopologyPlugin=topology/{plugin}",)
    options = {"nodes": 4, "topology": TOPOLOGIES[plugin], "extra_conf": conf}
    return shared_lab.with_options({**options, "slurm_prefix": slurm_prefix})


def domains(lab: Lab) -> dict[str, str]:
    return DOMAINS[lab.plan.extra_conf[0].rpartition("/")[2]]


def test_ranks_of_a_run_go_domain_by_domain(slurm: SlurmCommand) -> None:
    done = slurm.run("--procs-per-node", "1", "--", "bash", "-c", "echo rank $RANK on $SLURMD_NODENAME")
    assert done.returncode == 0, done.stderr
    nodes = slurm.status()["nodes"]
    assert {node["host"]: node["domain"] for node in nodes} == domains(slurm.lab)
    assert [node["host"] for node in nodes] == slurm.hosts()
    ranks = {node["logical_rank"]: node["host"] for node in nodes}
    assert [ranks[rank] for rank in range(4)] == ["n1", "n3", "n2", "n4"]
    logs = [slurm.rank_output(rank).read_text() for rank in range(4)]
    assert logs == [f"rank {rank} on {ranks[rank]}\n" for rank in range(4)]


def test_a_segment_gets_nodes_of_one_domain_and_the_others_are_spares(slurm: SlurmCommand) -> None:
    done = slurm.run("--segment", "2", "--spares", "2", "--", "true", nodes=2)
    assert done.returncode == 0, done.stderr
    roles = {node["host"]: node["role"] for node in slurm.status()["nodes"]}
    assert {host for host, role in roles.items() if role == "spare"} == {"n2", "n4"}, roles
