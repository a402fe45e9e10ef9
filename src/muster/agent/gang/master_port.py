"""The port of a gang's rank 0 (MASTER_PORT), leased on the leader's node for one cycle."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from muster.agent.job import Identity, Job
from muster.agent.ray import settings
from muster.agent.ray.settings import RayOptions
from muster.ports.blocks import HeldBlock, PortBlock, take_block
from muster.ports.guards import CELL_SIZE
from muster.rundir.node_groups import group_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MasterPort:
    """A port that rank 0 can bind; the guard of its block keeps other agents of this host away until it is released."""

    number: int
    held: HeldBlock | None

    def release(self) -> None:
        if self.held is not None:
            self.held.release()


def take_master_port(identity: Identity, job: Job, cycle: int) -> MasterPort:
    """Lease a port; raise OSError if none is free.

    Each cycle gets another port, so that no process of an older cycle can join. If Ray holds the pinned block, the port
    is the one that Ray does not use, the same in every cycle.
    """
    options = _ray_options(identity, job)
    size, pinned = settings.block_size(options), settings.pinned_base(options, identity.node_index)
    if job.ray and pinned is not None:
        return MasterPort(PortBlock(pinned, size).unused, None)
    seed = f"gang {identity.run.run_id} {identity.attempt.number}"
    held = take_block(seed, CELL_SIZE if pinned is None else size, pinned)
    if warning := held.warning():
        logger.warning("the gang: %s", warning)
    return MasterPort(held.block.base + cycle % (held.block.size - 1), held)


def _ray_options(identity: Identity, job: Job) -> RayOptions:
    """Return the options that determine size and position of Ray's pinned block."""
    has = group_of(identity.node_index, job.groups) or job
    return RayOptions(
        cpus=has.cpus_per_node,
        gpus=None,
        dashboard=False,
        nodes=job.nodes,
        local=identity.local,
        port_base=job.port_base,
    )
