"""This node's location in the machine: its topology address and domain, from Slurm, NVLink or MUSTER_ variables."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from muster.agent.job import Job
from muster.agent.ray.labels import probe_nvlink_domain
from muster.lifecycle.topology import UNKNOWN_LOCATION, NodeLocation

TOPOLOGY_VARIABLE, DOMAIN_VARIABLE = "MUSTER_TOPOLOGY", "MUSTER_DOMAIN"  # override what is detected
SLURM_VARIABLE = "SLURM_TOPOLOGY_ADDR"


def node_location(env: Mapping[str, str], nvlink_domain: str | None = None) -> NodeLocation:
    """Return the location. The domain is the NVLink domain if known, else the address without the node itself.

    Without a configured topology Slurm's address is only the node's name, which is ignored.

    >>> node_location({"SLURM_TOPOLOGY_ADDR": "spine1.leaf3.n17"})
    NodeLocation(domain='spine1.leaf3', topology='spine1.leaf3.n17')
    >>> node_location({"SLURM_TOPOLOGY_ADDR": "n17"})
    NodeLocation(domain='', topology='')
    """
    slurm = env.get(SLURM_VARIABLE, "")
    topology = env.get(TOPOLOGY_VARIABLE) or (slurm if "." in slurm else "")
    return NodeLocation(env.get(DOMAIN_VARIABLE) or nvlink_domain or topology.rpartition(".")[0], topology)


def ranks_follow_topology(env: Mapping[str, str], job: Job) -> bool:
    """Return whether ranks follow the nodes' locations; groups keep their order. Slurm locates all nodes or none."""
    return not job.groups and (job.segment > 1 or node_location(env) != UNKNOWN_LOCATION)


async def probe_location(env: Mapping[str, str], segment: int) -> NodeLocation:
    """Return the location for the greeting. Querying the GPUs takes seconds: done only for jobs with segments."""
    if segment <= 1 or env.get(DOMAIN_VARIABLE):
        return node_location(env)
    return node_location(env, await asyncio.to_thread(probe_nvlink_domain, dict(env)))
