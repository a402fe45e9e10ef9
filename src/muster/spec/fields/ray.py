"""Define the job's fields for Ray."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from muster.spec import validators
from muster.spec.flags import Flag
from muster.spec.types import SIZE, Count, Size


class RayFields(BaseModel):
    """The Ray cluster of the job."""

    ray: Annotated[
        bool,
        Flag(
            "Start a Ray cluster (default); --no-ray runs COMMAND without one.",
            group="Ray",
            allowed="true or false",
        ),
    ] = True
    dashboard: Annotated[
        bool,
        Flag("Start Ray's dashboard on the head's loopback. Default: no.", group="Ray", allowed="true or false"),
    ] = False
    port_base: Annotated[
        Annotated[int, BeforeValidator(validators.whole_number), Field(ge=1024, le=64536)] | None,
        Flag(
            "First port of the block that Ray uses on every node. Default: a free block outside the ephemeral range.",
            group="Ray",
            allowed="a whole number from 1024 to 64536",
            metavar="PORT",
        ),
    ] = None
    dedicated_head: Annotated[
        bool,
        Flag(
            "Give Ray no CPUs and GPUs of the head, so that no task runs there. Default: no.",
            group="Ray",
            allowed="true or false",
        ),
    ] = False
    object_store_memory: Annotated[
        Size | None,
        Flag(
            "Size of Ray's object store per node, in bytes or as 64G. Default: derived from the job's memory limit and "
            "the free shared memory.",
            group="Ray",
            allowed=SIZE,
            metavar="SIZE",
        ),
    ] = None
    require_auth: Annotated[
        bool,
        Flag("Refuse a Ray without tokens (before 2.52). Default: no.", group="Ray", allowed="true or false"),
    ] = False
    large_from: Annotated[
        Count,
        Flag(
            "Minimum number of nodes for which Ray's control service is tuned for large clusters; --env overrides each "
            "setting.",
            group="Ray",
            allowed="a whole number, 1 or more",
            metavar="N",
        ),
    ] = 64
    ray_logs: Annotated[
        Literal["always", "on-failure", "never"],
        Flag(
            "When to keep Ray's session logs, in one archive per node.",
            group="Ray",
            allowed="always, on-failure or never",
            metavar="always|on-failure|never",
        ),
    ] = "on-failure"
    ray_logs_max: Annotated[
        Size,
        Flag(
            "Maximum size of Ray's logs per node, in bytes or as 64M; longer logs are cut to their ends.",
            group="Ray",
            allowed=SIZE,
            metavar="SIZE",
        ),
    ] = 64 * 1024**2
