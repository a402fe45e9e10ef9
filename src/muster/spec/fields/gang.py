"""Define the job's field for gangs: several processes on every node instead of one driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel

from muster.spec.flags import Flag
from muster.spec.types import Count

if TYPE_CHECKING:
    from muster.spec.model import JobSpec


class GangFields(BaseModel):
    """The number of processes per node."""

    procs_per_node: Annotated[
        Count | None,
        Flag(
            "Run COMMAND as a gang of P processes on every node, with torchrun's environment (RANK, LOCAL_RANK, "
            "WORLD_SIZE, MASTER_ADDR, ...); if one fails, all are stopped. Default: one driver.",
            group="Gang",
            allowed="a whole number, 1 or more",
            aliases=("nproc-per-node",),
            metavar="P",
        ),
    ] = None


def validate_gang(spec: JobSpec) -> None:
    """Raise ValueError if the job's fields do not fit a gang."""
    if spec.procs_per_node is not None and spec.on_node_loss == "replace":
        raise ValueError("on_node_loss: a gang (--procs-per-node) cannot continue without a lost node; choose restart")
