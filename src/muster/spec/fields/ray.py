"""The job's fields about Ray."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from muster.spec import validators
from muster.spec.flags import Flag
from muster.spec.types import SIZE, Count, Size


class RayFields(BaseModel):
    """Whether there is a Ray cluster, and how it is set up."""

    ray: Annotated[
        bool,
        Flag(
            "Start a Ray cluster; --no-ray runs COMMAND on a plain gang of nodes.",
            group="Ray",
            allowed="true or false",
        ),
    ] = True
    dashboard: Annotated[
        bool,
        Flag("Start Ray's dashboard, on the head's loopback.", group="Ray", allowed="true or false"),
    ] = False
    port_base: Annotated[
        Annotated[int, BeforeValidator(validators.whole_number), Field(ge=1024, le=64536)] | None,
        Flag(
            "First port of the block that Ray uses on every node. Default: a free one, outside the ephemeral range.",
            group="Ray",
            allowed="a whole number from 1024 to 64536",
            metavar="PORT",
        ),
    ] = None
    dedicated_head: Annotated[
        bool,
        Flag("Give the head no CPUs and GPUs: no task runs beside it.", group="Ray", allowed="true or false"),
    ] = False
    object_store_memory: Annotated[
        Size | None,
        Flag(
            "Ray's object store on each node. Default: from the job's memory limit and the free shared memory.",
            group="Ray",
            allowed=SIZE,
            metavar="SIZE",
        ),
    ] = None
    require_auth: Annotated[
        bool,
        Flag("Refuse a Ray that knows no tokens (before 2.52).", group="Ray", allowed="true or false"),
    ] = False
    large_from: Annotated[
        Count,
        Flag(
            "Number of nodes from which Ray's control service is tuned for size; any value of it yields to --env.",
            group="Ray",
            allowed="a whole number, 1 or more",
            metavar="N",
        ),
    ] = 64
    ray_logs: Annotated[
        Literal["always", "on-failure", "never"],
        Flag(
            "When to keep Ray's session logs, as one archive for each node.",
            group="Ray",
            allowed="always, on-failure or never",
            metavar="always|on-failure|never",
        ),
    ] = "on-failure"
    ray_logs_max: Annotated[
        Size,
        Flag(
            "Most that one node's archive of Ray's logs may hold; of longer logs the ends are kept.",
            group="Ray",
            allowed=SIZE,
            metavar="SIZE",
        ),
    ] = 64 * 1024**2
