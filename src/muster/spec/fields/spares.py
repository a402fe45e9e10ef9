"""Define the job's fields for spare nodes and for restarts inside the allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel

from muster.spec.flags import Flag
from muster.spec.types import TIME, Count, CountOrZero, Seconds

if TYPE_CHECKING:
    from muster.spec.model import JobSpec


class SpareFields(BaseModel):
    """The number of spare nodes, and the reaction to the loss of a node."""

    spares: Annotated[
        CountOrZero,
        Flag(
            "Number of spare nodes that replace failed ones; Slurm allocates --nodes plus --spares nodes.",
            group="Spares",
            allowed="a whole number, 0 or more",
            metavar="K",
        ),
    ] = 0
    on_node_loss: Annotated[
        Literal["fail", "replace", "restart"],
        Flag(
            "Reaction to a node that is lost while the driver runs: fail the run; replace the node with a spare in the "
            "running Ray cluster; or restart Ray and the driver on the remaining nodes (MUSTER_CYCLE is incremented, "
            "MUSTER_RESUME is 1).",
            group="Spares",
            allowed="fail, replace or restart",
            metavar="fail|replace|restart",
        ),
    ] = "fail"
    max_restarts: Annotated[
        CountOrZero,
        Flag(
            "Maximum number of restarts of Ray and the driver within one job.",
            group="Spares",
            allowed="a whole number, 0 or more",
            metavar="R",
        ),
    ] = 3
    restart_on_driver_failure: Annotated[
        bool,
        Flag(
            "Restart also when the driver fails or stalls, at most --max-restarts times. Default: no.",
            group="Spares",
            allowed="true or false",
        ),
    ] = False
    control_exit_codes: Annotated[
        bool,
        Flag(
            "Take exit code 115 of the driver or of a rank as muster.request_restart(), 116 as muster.no_restart() and "
            "117 as muster.exclude_node(). Default: no.",
            group="Spares",
            allowed="true or false",
        ),
    ] = False
    no_progress_limit: Annotated[
        CountOrZero,
        Flag(
            "End with code 119 after K consecutive cycles without progress, even if restarts are left; 0 disables it. "
            "Progress: muster.beat() was called, or a driver that never calls it ran for 10 minutes.",
            group="Spares",
            allowed="a whole number, 0 or more",
            metavar="K",
        ),
    ] = 3
    spare_check_interval: Annotated[
        Seconds,
        Flag(
            "Interval at which a spare runs its checks again, in seconds or as 5m; a spare that fails one is "
            "not used. 0 disables it.",
            group="Spares",
            allowed=TIME,
            metavar="TIME",
        ),
    ] = 60.0
    segment: Annotated[
        Count,
        Flag(
            "Keep each S consecutive ranks in one topology domain (NVLink domain, leaf switch, block); --nodes must be "
            "a multiple of S.",
            group="Spares",
            allowed="a whole number, 1 or more",
            metavar="S",
        ),
    ] = 1
    last_call: Annotated[
        Seconds,
        Flag(
            "Time to wait for further nodes once --nodes nodes have joined, in seconds or as 1m; nodes that join later "
            "become spares.",
            group="Spares",
            allowed=TIME,
            metavar="TIME",
        ),
    ] = 5.0


def validate_spares(spec: JobSpec) -> None:
    """Raise ValueError if the job's spares, segments and groups do not fit together."""
    if spec.on_node_loss == "replace" and not spec.spares:
        raise ValueError("on_node_loss: replace needs a spare node; give --spares, or choose restart")
    if spec.spares and spec.groups:
        raise ValueError("spares: a job with groups cannot have spares: a node of one group cannot replace another's")
    if spec.segment > 1 and spec.groups:
        raise ValueError("segment: the ranks of a job with groups follow its groups, not the topology domains")
    if spec.nodes_given:
        validate_segment(spec.nodes, spec.segment)


def validate_segment(nodes: int, segment: int) -> None:
    """Raise ValueError unless `nodes` is a multiple of `segment`."""
    if nodes % segment:
        raise ValueError(
            f"segment: {nodes} nodes are not a multiple of --segment {segment}; change --nodes or --segment"
        )
