"""The port at which the processes of a gang find rank 0: the leader's node takes it, for one cycle."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from muster.agent.job import Identity, Job
from muster.agent.ray import settings
from muster.agent.ray.ports import HeldBlock, PortBlock, take_block
from muster.agent.ray.settings import RayOptions
from muster.port_ranges import CELL_SIZE
from muster.rundir.node_groups import group_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MasterPort:
    """Free for rank 0 to bind; the guard of its block keeps every other agent on this host away until released."""

    number: int
    held: HeldBlock | None

    def release(self) -> None:
        if self.held is not None:
            self.held.release()


def take_master_port(identity: Identity, job: Job, cycle: int) -> MasterPort:
    """Another one in each cycle, so that no process of an older one can join; OSError where none is free.

    Where Ray has the pinned block, and holds its guard, it is the port that Ray leaves free, which stays the same.
    """
    options = _as_ray_takes_them(identity, job)
    size, pinned = settings.block_size(options), settings.pinned_base(options, identity.rank)
    if job.ray and pinned is not None:
        return MasterPort(PortBlock(pinned, size).unused, None)
    seed = f"gang {identity.run.run_id} {identity.attempt.number}"
    held = take_block(seed, CELL_SIZE if pinned is None else size, pinned)
    if warning := held.warning():
        logger.warning("the gang: %s", warning)
    return MasterPort(held.block.base + cycle % (held.block.size - 1), held)


def _as_ray_takes_them(identity: Identity, job: Job) -> RayOptions:
    """So that a pinned block is as large, and at the same place, as Ray's would be."""
    has = group_of(identity.rank, job.groups) or job
    return RayOptions(
        cpus=has.cpus_per_node,
        gpus=None,
        dashboard=False,
        nodes=job.nodes,
        local=identity.local,
        port_base=job.port_base,
    )
