"""Define the job's fields for its command, size, environment, container and deadlines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from muster.spec import validators
from muster.spec.fields.groups import Group
from muster.spec.flags import Flag
from muster.spec.types import (
    SIZE,
    TIME,
    Count,
    CountOrZero,
    Deadline,
    EnvName,
    Line,
    Seconds,
    ShellText,
    SizeOrZero,
    Word,
)

if TYPE_CHECKING:
    from muster.spec.model import JobSpec


class CommandFields(BaseModel):
    """The command, the backend and the size of the job."""

    command: Annotated[
        list[Word],
        BeforeValidator(validators.command_words),
        AfterValidator(validators.runnable),
        Flag(
            "The driver, started when every node is ready. In the job file: a list, or text for `bash -c`.",
            group="Job",
            allowed="a list of words without NUL bytes, or text for bash",
            metavar="COMMAND",
            argument=True,
        ),
    ]
    name: Annotated[
        str,
        AfterValidator(validators.job_name),
        Flag(
            "Name of the job; the run id starts with it.",
            group="Job",
            allowed="1 to 64 characters on one line, no slash",
            short="-J",
            aliases=("job-name",),
            metavar="NAME",
        ),
    ] = "muster"
    backend: Annotated[
        Literal["auto", "local", "slurm"],
        Flag(
            "Where to run. auto: in the current allocation, else with sbatch if it is installed, else on this machine.",
            group="Job",
            allowed="auto, local or slurm",
            metavar="auto|local|slurm",
        ),
    ] = "auto"
    nodes: Annotated[
        Count,
        Flag(
            "Number of nodes, without --spares. Inside an allocation the default is all nodes but the spares. MIN-MAX "
            "is --min-nodes MIN --nodes MAX.",
            group="Job",
            allowed="a whole number, 1 or more, or a range such as 3-4",
            short="-N",
            metavar="N",
        ),
    ] = 1
    min_nodes: Annotated[
        Count | None,
        Flag(
            "Begin with so many nodes if the others have not joined within --gather-timeout; nodes that arrive later "
            "join the running Ray cluster, or the next cycle of a gang. Slurm allocates MIN to --nodes nodes. Default: "
            "--nodes.",
            group="Job",
            allowed="a whole number, 1 or more",
            metavar="MIN",
        ),
    ] = None
    cpus_per_node: Annotated[
        Count | None,
        Flag(
            "Number of CPUs per node. Default: all; the nodes are then exclusive.",
            group="Job",
            allowed="a whole number, 1 or more",
            metavar="C",
        ),
    ] = None
    gpus_per_node: Annotated[
        CountOrZero | None,
        Flag(
            "Number of GPUs per node. For GPUs of one type use --gres gpu:TYPE:G.",
            group="Job",
            allowed="a whole number, 0 or more; GPUs of one type with gres, as in gpu:a100:4",
            metavar="G",
            sbatch="gpus-per-node",
        ),
    ] = None
    groups: Annotated[
        list[Group],
        Flag(
            "Groups of identical nodes, each with a name, a number of nodes and their resources.",
            group="Job",
            allowed="a list of groups, as in [{name: trainers, nodes: 2, gpus_per_node: 8}]",
            file_only=True,
        ),
    ] = Field(default_factory=list)


class EnvironmentFields(BaseModel):
    """The environment of the job's processes."""

    python: Annotated[
        Line | None,
        Flag(
            "Python of the nodes. Default: the active virtualenv or conda environment, ./.venv, else python3; in a "
            "container the image's python3.",
            group="Environment",
            allowed="the path or name of an interpreter",
            metavar="PATH",
        ),
    ] = None
    setup: Annotated[
        ShellText | None,
        Flag(
            "Shell code to run on every node first, as in 'module load cuda; source env.sh'.",
            group="Environment",
            allowed="shell code",
            metavar="CMD",
        ),
    ] = None
    env: Annotated[
        dict[EnvName, Word],
        BeforeValidator(validators.empty_for_none),
        Flag(
            "Variable to set for the driver and all processes of the job; may be repeated.",
            group="Environment",
            allowed="NAME=VALUE, NAME of letters, digits and _, not starting with a digit",
            metavar="NAME=VALUE",
        ),
    ] = Field(default_factory=dict)
    workdir: Annotated[
        Line | None,
        Flag(
            "Working directory. Default: the current directory.",
            group="Environment",
            allowed="a path on one line",
            metavar="DIR",
        ),
    ] = None
    log_limit: Annotated[
        SizeOrZero,
        Flag(
            "Maximum size of each log of the driver, a rank, a guest or a node, in bytes or as 1G; the beginning and "
            "the end are kept. 0: no limit.",
            group="Environment",
            allowed=SIZE + "; 0 for no limit, else at least 1M",
            metavar="SIZE",
        ),
    ] = 1024**3
    runs_dir: Annotated[
        Line | None,
        Flag(
            "Directory for run directories, on a filesystem that every node shares. Default: $MUSTER_RUNS_DIR, else "
            "./muster-runs.",
            group="Environment",
            allowed="a path on one line",
            metavar="DIR",
        ),
    ] = None
    interface: Annotated[
        Annotated[Line, AfterValidator(validators.interfaces)] | None,
        Flag(
            "Interface (ib0, ib*), address or network (10.1.0.0/16) that nodes use. Default: one that connects them.",
            group="Environment",
            allowed="names of interfaces, addresses, or networks such as 10.1.0.0/16, several with commas",
            metavar="NAME|NET",
        ),
    ] = None


class ContainerFields(BaseModel):
    """The container of the job."""

    container_image: Annotated[
        Line | None,
        Flag(
            "Image in which the whole job runs; it needs Python and Ray, but neither Muster nor Slurm. Default: none.",
            group="Container",
            allowed="an image in the container runtime's notation: a path or a registry reference",
            metavar="IMAGE",
        ),
    ] = None
    container_mounts: Annotated[
        Line | None,
        Flag(
            "Directories to mount, as in /data:/data:ro,/scratch; the run and working directories are always mounted.",
            group="Container",
            allowed="SRC[:DST[:FLAGS]], several with commas",
            metavar="LIST",
        ),
    ] = None
    container_workdir: Annotated[
        Line | None,
        Flag(
            "Working directory inside the container. Default: the same as outside.",
            group="Container",
            allowed="a path on one line",
            metavar="DIR",
        ),
    ] = None
    container_runtime: Annotated[
        Literal["auto", "pyxis", "apptainer", "charliecloud"],
        Flag(
            "Container runtime. auto: pyxis if srun has it, else Apptainer, else Charliecloud.",
            group="Container",
            allowed="auto, pyxis, apptainer or charliecloud",
            metavar="NAME",
        ),
    ] = "auto"
    container_args: Annotated[
        ShellText | None,
        Flag(
            "Further options for the container runtime, as in '--container-remap-root' or '--nv'.",
            group="Container",
            allowed="options, quoted as in a shell",
            metavar="ARGS",
        ),
    ] = None


class DeadlineFields(BaseModel):
    """The deadlines of the job, and its health check."""

    gather_timeout: Annotated[
        Deadline,
        Flag(
            "Maximum time until every node has joined, in seconds or as 10m.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = 600.0
    start_timeout: Annotated[
        Deadline,
        Flag(
            "Maximum time until Ray runs on all nodes, in seconds or as 5m.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = 300.0
    stop_grace: Annotated[
        Seconds,
        Flag(
            "Time between SIGTERM and SIGKILL to the driver, in seconds or as 1m.",
            group="Deadlines",
            allowed=TIME,
            metavar="TIME",
        ),
    ] = 30.0
    idle_timeout: Annotated[
        Deadline | None,
        Flag(
            "Stop an idle cluster (`muster up`) after this time without use, in seconds or as 2h. Default: never.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = None
    stall_timeout: Annotated[
        Deadline | None,
        Flag(
            "Dump all stacks and fail when the driver has had no output and no muster.beat() for this time, in "
            "seconds or as 30m. Default: never.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = None
    on_hang: Annotated[
        Literal["report", "restart", "fail"] | None,
        Flag(
            "Reaction to a process that stays in a muster.section(), or a step, beyond its limit, after all stacks are "
            "dumped: report it; restart (--max-restarts); or fail the run. Default: report; with "
            "--stall-timeout, a limit given by the program counts as a stall.",
            group="Deadlines",
            allowed="report, restart or fail",
            metavar="report|restart|fail",
        ),
    ] = None
    hang_min_time: Annotated[
        Deadline,
        Flag(
            "Shortest limit that Muster learns for a muster.section() or a step, in seconds or as 5m.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = 300.0
    health_check: Annotated[
        ShellText | None,
        Flag(
            "Shell code to run on every node before Ray; if it fails, the run ends and the error names the node.",
            group="Environment",
            allowed="shell code",
            metavar="CMD",
        ),
    ] = None


def with_range(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's fields as given, and a range of nodes as two numbers.

    >>> with_range({"nodes": "3-4"})
    {'nodes': '4', 'min_nodes': '3'}
    """
    least, dash, most = str(data.get("nodes")).partition("-")
    if not (dash and re.fullmatch(r"[0-9]+", least) and re.fullmatch(r"[0-9]+", most)):
        return dict(data)
    if data.get("min_nodes") is not None:
        raise ValueError(f"min_nodes: nodes is a range, {least}-{most}; remove one of them")
    return {**data, "nodes": most, "min_nodes": least}


def validate_range(spec: JobSpec) -> None:
    """Raise ValueError if the job cannot run on fewer nodes than it wants."""
    if spec.min_nodes is None:
        return
    if spec.min_nodes > spec.nodes:
        raise ValueError(f"min_nodes: {spec.min_nodes} is more than --nodes {spec.nodes}")
    if spec.groups:
        raise ValueError("min_nodes: a job with groups needs all of its nodes; remove min_nodes or the groups")
    if spec.segment > 1:
        raise ValueError("min_nodes: a job with --segment needs whole segments; remove --min-nodes or --segment")
