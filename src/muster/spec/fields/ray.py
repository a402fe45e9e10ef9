"""Define the job's fields for Ray."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from muster.spec import ray_values, validators
from muster.spec.flags import Flag
from muster.spec.types import SIZE, Count, Line, RayLabels, RayResources, Size, Word


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
    dedicated_head_cpus: Annotated[
        bool,
        Flag(
            "Give Ray no GPUs of the head, but its CPUs: a dedicated head on which tasks without GPUs run, as "
            "DEDICATED_RAY_HEAD=1 of ray.sub. Default: no.",
            group="Ray",
            allowed="true or false",
        ),
    ] = False
    ray_start_arg: Annotated[
        list[Annotated[Word, AfterValidator(ray_values.start_argument)]],
        BeforeValidator(validators.words),
        Flag(
            "Further argument of `ray start` on every node, as in --ray-start-arg=--ray-debugger-external; may be "
            "repeated.",
            group="Ray",
            allowed="--NAME or --NAME=VALUE, an argument of `ray start` that Muster does not set",
            metavar="ARG",
        ),
    ] = Field(default_factory=list)
    ray_resource: Annotated[
        RayResources,
        Flag(
            "Custom resource of every Ray node; may be repeated. A group of the job file may have others.",
            group="Ray",
            allowed="NAME=N, N a whole number, 0 or more",
            metavar="NAME=N",
        ),
    ] = Field(default_factory=dict)
    ray_label: Annotated[
        RayLabels,
        Flag(
            "Label of every Ray node; may be repeated. A group of the job file may have others.",
            group="Ray",
            allowed="KEY=VALUE, at most 63 letters, digits, _, . and - each; a KEY may begin with a domain and a slash",
            metavar="KEY=VALUE",
        ),
    ] = Field(default_factory=dict)
    ray_unset: Annotated[
        list[Annotated[str, AfterValidator(ray_values.unset_pattern)]],
        BeforeValidator(validators.comma_list),
        Flag(
            "Variables that Ray's processes do not get, with commas, as in 'OMPI_*,SLURM_*'; the driver keeps them. "
            "Those of PMI, PMIx and the job step are always removed.",
            group="Ray",
            allowed="names of variables or their beginnings with *, several with commas",
            metavar="LIST",
        ),
    ] = Field(default_factory=list)
    gpu_affinity_file: Annotated[
        Annotated[Line, AfterValidator(ray_values.absolute_path)] | None,
        Flag(
            "File to write on every node before Ray starts, with a line GPU:CPULIST for each GPU; NeMo-RL, which gets "
            "its path in NRL_GPU_CPU_AFFINITY_FILE, binds workers by it. Default: none.",
            group="Ray",
            allowed="an absolute path on a filesystem of each node",
            metavar="PATH",
        ),
    ] = None
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
    gcs_recovery: Annotated[
        bool,
        Flag(
            "Restart Ray's control service (GCS) with its state if it exits, where the Ray release can store it "
            "(default); --no-gcs-recovery ends the cycle instead.",
            group="Ray",
            allowed="true or false",
        ),
    ] = True
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
