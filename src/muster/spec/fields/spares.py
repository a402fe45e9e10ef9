"""The job's fields about spare nodes, and about going on inside the allocation when something is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel

from muster.spec.flags import Flag
from muster.spec.types import TIME, Count, CountOrZero, Seconds

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
    no_progress_limit: Annotated[
        CountOrZero,
        Flag(
            "End with code 119 when so many cycles in a row failed without progress, whatever restarts are left; 0: "
            "never. Progress: muster.beat() was called, or a driver that never calls it ran for 10 minutes.",
            group="Spares",
            allowed="a whole number, 0 or more",
            metavar="K",
        ),
    ] = 3
    spare_check_interval: Annotated[
        Seconds,
        Flag(
            "How often a waiting spare runs --health-check again; one that fails it is not used. 0: never.",
            group="Spares",
            allowed=TIME,
            metavar="TIME",
        ),
    ] = 60.0
    segment: Annotated[
        Count,
        Flag(
            "So many ranks in a row lie in one domain of the machine (NVLink domain, leaf switch, block); --nodes is a "
            "multiple of it.",
            group="Spares",
            allowed="a whole number, 1 or more",
            metavar="S",
        ),
    ] = 1
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
    if spec.segment > 1 and spec.groups:
        return "segment: the ranks of a job with groups follow its groups, not the machine's domains"
    return segment_problem(spec.nodes, spec.segment) if spec.nodes_given else None


def segment_problem(nodes: int, segment: int) -> str | None:
    """Why this many nodes are not whole segments; None when they are."""
    if nodes % segment == 0:
        return None
    return f"segment: {nodes} nodes are not whole segments of {segment}; --nodes must be a multiple of --segment"
