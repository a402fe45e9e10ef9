"""The job's fields about the job itself: where it runs and on what, its environment, its container, its deadlines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from muster.spec import validators
from muster.spec.fields.groups import Group
from muster.spec.flags import Flag
from muster.spec.types import (
    TIME,
    Count,
    CountOrZero,
    Deadline,
    EnvName,
    Line,
    Seconds,
    ShellText,
    Word,
    empty_for_none,
)


class PlaceFields(BaseModel):
    """What runs, where, and on how much."""

    command: Annotated[
        list[Word],
        BeforeValidator(validators.command_words),
        AfterValidator(validators.runnable),
        Flag(
            "The driver, started when every node is ready. In the job file: a list, or a text for `bash -c`.",
            group="Job",
            allowed="a list of words, none with a NUL byte, or a text for bash",
            metavar="COMMAND",
            argument=True,
        ),
    ]
    name: Annotated[
        str,
        AfterValidator(validators.job_name),
        Flag(
            "Name of the job; the run's id begins with it.",
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
            "Where to run. auto: the allocation you are in, else sbatch where it exists, else this machine.",
            group="Job",
            allowed="auto, local or slurm",
            metavar="auto|local|slurm",
        ),
    ] = "auto"
    nodes: Annotated[
        Count,
        Flag(
            "Number of nodes the job works on; inside an allocation all of it (less --spares) unless given.",
            group="Job",
            allowed="a whole number, 1 or more",
            short="-N",
            metavar="N",
        ),
    ] = 1
    cpus_per_node: Annotated[
        Count | None,
        Flag("CPUs of each node.", group="Job", allowed="a whole number, 1 or more", metavar="C"),
    ] = None
    gpus_per_node: Annotated[
        CountOrZero | None,
        Flag(
            "GPUs of each node. For GPUs of one type use --gres gpu:TYPE:G.",
            group="Job",
            allowed="a whole number, 0 or more; GPUs of one type with gres, as in gpu:a100:4",
            metavar="G",
            sbatch="gpus-per-node",
        ),
    ] = None
    groups: Annotated[
        list[Group],
        Flag(
            "Groups of unlike nodes, each with a name, a number of nodes and what they must be.",
            group="Job",
            allowed="a list of groups, as in [{name: trainers, nodes: 2, gpus_per_node: 8}]",
            file_only=True,
        ),
    ] = Field(default_factory=list)


class EnvironmentFields(BaseModel):
    """What the job's processes find around them."""

    python: Annotated[
        Line | None,
        Flag(
            "Python of the nodes. Default: active virtualenv or conda, ./.venv, else python3; an image's own python3.",
            group="Environment",
            allowed="the path or name of an interpreter",
            metavar="PATH",
        ),
    ] = None
    setup: Annotated[
        ShellText | None,
        Flag(
            "Shell text to run on every node first, as in 'module load cuda; source env.sh'.",
            group="Environment",
            allowed="shell text",
            metavar="CMD",
        ),
    ] = None
    env: Annotated[
        dict[EnvName, Word],
        BeforeValidator(empty_for_none),
        Flag(
            "A variable for the driver and every process of the job; may be repeated.",
            group="Environment",
            allowed="NAME=VALUE, NAME of letters, digits and _, not starting with a digit",
            metavar="NAME=VALUE",
        ),
    ] = Field(default_factory=dict)
    workdir: Annotated[
        Line | None,
        Flag(
            "Directory to run in. Default: the one you submit from.",
            group="Environment",
            allowed="a path on one line",
            metavar="DIR",
        ),
    ] = None
    runs_dir: Annotated[
        Line | None,
        Flag(
            "Directory for run directories; every node must see it.",
            group="Environment",
            allowed="a path on one line",
            metavar="DIR",
        ),
    ] = None
    interface: Annotated[
        Annotated[Line, AfterValidator(validators.interfaces)] | None,
        Flag(
            "Interface (ib0, ib*), address or network (10.1.0.0/16) that nodes use. Default: whichever connects.",
            group="Environment",
            allowed="names of interfaces, addresses, or networks such as 10.1.0.0/16, several with commas",
            metavar="NAME|NET",
        ),
    ] = None


class ContainerFields(BaseModel):
    """The image everything runs in, if there is one."""

    container_image: Annotated[
        Line | None,
        Flag(
            "Image in which everything of the job runs; it needs Python and Ray, nothing of Muster or Slurm.",
            group="Container",
            allowed="an image, as the container runtime names it: a path or a registry's reference",
            metavar="IMAGE",
        ),
    ] = None
    container_mounts: Annotated[
        Line | None,
        Flag(
            "Directories to mount, as in /data:/data:ro,/scratch; run and working directory are always there.",
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
            "What runs the image. auto: pyxis where srun has it, else Apptainer, else Charliecloud.",
            group="Container",
            allowed="auto, pyxis, apptainer or charliecloud",
            metavar="NAME",
        ),
    ] = "auto"
    container_args: Annotated[
        ShellText | None,
        Flag(
            "Further options of the container runtime, as in '--container-remap-root' or '--nv'.",
            group="Container",
            allowed="options, quoted as in a shell",
            metavar="ARGS",
        ),
    ] = None


class WatchFields(BaseModel):
    """How long things may take, and what is looked at meanwhile."""

    gather_timeout: Annotated[
        Deadline,
        Flag(
            "Time for every node to arrive.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = 600.0
    start_timeout: Annotated[
        Deadline,
        Flag(
            "Time for Ray to be up on all nodes.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = 300.0
    stop_grace: Annotated[
        Seconds,
        Flag("Time for the driver between TERM and KILL.", group="Deadlines", allowed=TIME, metavar="TIME"),
    ] = 30.0
    idle_timeout: Annotated[
        Deadline | None,
        Flag(
            "End an idle cluster (`muster up`) when nobody has used it for so long.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = None
    stall_timeout: Annotated[
        Deadline | None,
        Flag(
            "Take the driver for stalled after so long without output or muster.beat(): dump all stacks, then fail.",
            group="Deadlines",
            allowed=TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = None
    health_check: Annotated[
        ShellText | None,
        Flag(
            "Shell text to run on every node before Ray; a node where it fails is named, and ends the run.",
            group="Environment",
            allowed="shell text",
            metavar="CMD",
        ),
    ] = None
