"""The job's field about gangs: several processes on every node in place of one driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel

from muster.spec.flags import Flag
from muster.spec.types import Count

if TYPE_CHECKING:
    from muster.spec.model import JobSpec


class GangFields(BaseModel):
    """How many processes a node gets."""

    procs_per_node: Annotated[
        Count | None,
        Flag(
            "Run COMMAND as a gang: so many processes on every node, with the environment that torchrun gives (RANK, "
            "LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, ...). One that fails ends them all. Default: one driver.",
            group="Gang",
            allowed="a whole number, 1 or more",
            aliases=("nproc-per-node",),
            metavar="P",
        ),
    ] = None


def problem(spec: JobSpec) -> str | None:
    """Why these cannot go together; None when they can."""
    if spec.procs_per_node is not None and spec.on_node_loss == "replace":
        return "on_node_loss: the processes of --procs-per-node cannot go on without a node's; choose restart"
    return None
