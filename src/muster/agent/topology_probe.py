"""Where this node is in the machine: Slurm's address of it, its domain, or what the variables of ours say instead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from muster.agent.job import Job
from muster.agent.ray.labels import probe_nvlink_domain
from muster.lifecycle.topology import NOWHERE, NodeLocation
from muster.rundir import RunPaths

TOPOLOGY_VARIABLE, DOMAIN_VARIABLE = "MUSTER_TOPOLOGY", "MUSTER_DOMAIN"  # these win
SLURM_VARIABLE = "SLURM_TOPOLOGY_ADDR"


def place_of(env: Mapping[str, str], nvlink_domain: str | None = None) -> NodeLocation:
    """The domain is the NVLink domain if that is known, else all of the address but the node itself.

    Where Slurm knows no topology its address is the node's name alone, which says nothing.

    >>> place_of({"SLURM_TOPOLOGY_ADDR": "spine1.leaf3.n17"})
    Place(domain='spine1.leaf3', topology='spine1.leaf3.n17')
    >>> place_of({"SLURM_TOPOLOGY_ADDR": "n17"})
    Place(domain='', topology='')
    """
    slurm = env.get(SLURM_VARIABLE, "")
    topology = env.get(TOPOLOGY_VARIABLE) or (slurm if "." in slurm else "")
    return NodeLocation(env.get(DOMAIN_VARIABLE) or nvlink_domain or topology.rpartition(".")[0], topology)


def matters(env: Mapping[str, str], job: Job) -> bool:
    """Whether ranks follow the nodes' places. Slurm tells all nodes or none; groups keep their own order."""
    return not job.groups and (job.segment > 1 or place_of(env) != NOWHERE)


async def find_place(env: Mapping[str, str], run: RunPaths) -> NodeLocation:
    """For the greeting. Asking the GPUs takes seconds: only where whole segments of a domain are wanted."""
    if env.get(DOMAIN_VARIABLE):
        return place_of(env)
    loop = asyncio.get_running_loop()
    return place_of(env, await loop.run_in_executor(None, _asked, dict(env), run))


def _asked(env: dict[str, str], run: RunPaths) -> str | None:
    return probe_nvlink_domain(env) if Job.load(run).segment > 1 else None


def place_from(greeting: Mapping[str, Any]) -> NodeLocation:
    return NodeLocation(str(greeting.get("domain", "")), str(greeting.get("topology", "")))
