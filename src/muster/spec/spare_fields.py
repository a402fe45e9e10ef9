"""The job's fields about spare nodes, and about going on inside the allocation when something is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel

from muster.spec.flags import Flag
from muster.spec.types import TIME, CountOrZero, Seconds

if TYPE_CHECKING:
    from muster.spec.model import JobSpec


class SpareFields(BaseModel):
    """How many nodes wait, and what happens when one that works is lost."""

    spares: Annotated[
        CountOrZero,
        Flag(
            "Nodes beyond --nodes that wait, to stand in for one that fails; Slurm is asked for both together.",
            group="Spares",
            allowed="a whole number, 0 or more",
            metavar="K",
        ),
    ] = 0
    on_node_loss: Annotated[
        Literal["fail", "replace", "restart"],
        Flag(
            "When a node is lost under the driver: fail; replace it by a spare in the running Ray cluster; or restart "
            "Ray and the driver on the nodes that are left (MUSTER_CYCLE counts up, MUSTER_RESUME is 1).",
            group="Spares",
            allowed="fail, replace or restart",
            metavar="fail|replace|restart",
        ),
    ] = "fail"
    max_restarts: Annotated[
        CountOrZero,
        Flag(
            "How often at most Ray and the driver are restarted within one job.",
            group="Spares",
            allowed="a whole number, 0 or more",
            metavar="R",
        ),
    ] = 3
    restart_on_driver_failure: Annotated[
        bool,
        Flag(
            "Restart also when the driver itself fails or stalls, within --max-restarts.",
            group="Spares",
            allowed="true or false",
        ),
    ] = False
    last_call: Annotated[
        Seconds,
        Flag(
            "How long to wait for the rest once --nodes nodes are there; who comes later is a spare.",
            group="Spares",
            allowed=TIME,
            metavar="TIME",
        ),
    ] = 5.0


def problem(spec: JobSpec) -> str | None:
    """Why these cannot go together; None when they can."""
    if spec.on_node_loss == "replace" and not spec.spares:
        return "on_node_loss: there is no spare to replace a node by; give --spares, or choose restart"
    if spec.spares and spec.groups:
        return "spares: a job with groups of unlike nodes cannot have spares: a node of one group is none of another"
    return None
