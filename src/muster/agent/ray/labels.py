"""Labels and custom resources of a node in Ray.

NeMo-RL's driver starts another cluster unless it finds `slurm_managed_ray_cluster`; it orders nodes by `topo_rank`,
keeps groups inside an `nvlink_domain_<uuid>`, counts `worker_units`, and finds the head by `ray_head`. NeMo Curator
reads the label `ray.io/node-type`, which only an environment variable can set, not `ray start`. Placement groups with a
topology strategy (Ray 2.56 and newer) keep their bundles on nodes of one `ray.io/gpu-domain`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from muster.agent.ray.starter import GPU_DOMAIN_LABEL, NODE_LABEL, RANK_LABEL
from muster.rundir import node_groups

NODE_TYPE_VARIABLE = "RAY_OVERRIDE_LABELS"
NVIDIA_SMI_TIMEOUT_S = 20.0
_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_CLUSTER_UUID = re.compile(r"ClusterUUID\s*:\s*([0-9a-fA-F-]+)")


@dataclass(frozen=True)
class NodeFacts:
    """Identity and position of a node."""

    rank: int
    host: str
    topology: str = ""  # Slurm's address of the node in the network: "spine1.leaf3.node17"
    nvlink_domain: str | None = None
    group: str | None = None  # in a job with node groups
    domain: str = ""  # the smallest topology domain: NVLink domain, leaf switch or block
    node_index: int | None = None  # in the allocation, if it differs from the rank: a spare takes another node's rank

    @property
    def head(self) -> bool:
        return self.rank == 0


def labels(facts: NodeFacts, dedicated_head: bool = False) -> dict[str, str]:
    """Return the node's labels, without those whose value Ray does not allow."""
    wanted = {
        RANK_LABEL: str(facts.rank),
        NODE_LABEL: str(facts.rank if facts.node_index is None else facts.node_index),
        "muster.io/role": "head" if facts.head else "worker",
        "muster.io/host": facts.host,
        "muster.io/topology": facts.topology,
        "muster.io/domain": facts.domain,
        "muster.io/nvlink-domain": facts.nvlink_domain or "",
        GPU_DOMAIN_LABEL: "" if dedicated_head else facts.nvlink_domain or "",
        node_groups.GROUP_LABEL: facts.group or "",
    }
    return {key: value for key, value in wanted.items() if _VALUE.fullmatch(value)}


def node_type(facts: NodeFacts) -> str:
    """Return the value of NODE_TYPE_VARIABLE."""
    return json.dumps({"ray.io/node-type": "head" if facts.head else "worker"})


def resources(facts: NodeFacts, gpus: int | None, dedicated_head: bool = False) -> dict[str, int]:
    """Return the node's custom resources; a dedicated head has none of those by which work is placed."""
    named = {"slurm_managed_ray_cluster": 1}
    if not dedicated_head:
        named |= {"topo_rank": topology_rank(facts), "worker_units": gpus or 1}
    if facts.head:
        named["ray_head"] = 1
    if facts.nvlink_domain is not None and not dedicated_head:
        named[f"nvlink_domain_{facts.nvlink_domain}"] = 1
    if facts.group is not None:
        named[node_groups.group_resource(facts.group)] = 1
    return named


def topology_rank(facts: NodeFacts) -> int:
    """Return a number that sorts nodes by network position; without a topology, the rank + 1.

    It is at least 1, since Ray drops a resource of amount 0.

    >>> topology_rank(NodeFacts(0, "n17", "spine1.leaf3.n17"))
    100030017
    """
    numbers = [re.search(r"(\d{1,4})$", part) for part in facts.topology.split(".")[-3:]]
    if not numbers or any(match is None for match in numbers):
        return facts.rank + 1
    return int("".join(f"{int(match[1]):04d}" for match in numbers if match))


def probe_nvlink_domain(env: Mapping[str, str]) -> str | None:
    """Return the NVLink domain of this node's GPUs. nvidia-smi takes seconds on a node with many GPUs."""
    program = shutil.which("nvidia-smi", path=env.get("PATH"))
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-q"], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return nvlink_domain(done.stdout)


def nvlink_domain(listing: str) -> str | None:
    """Return the ClusterUUID in the output of `nvidia-smi -q`, if all GPUs have the same and it is not zero."""
    found = {uuid.lower() for uuid in _CLUSTER_UUID.findall(listing) if set(uuid) - set("0-")}
    return found.pop() if len(found) == 1 else None
