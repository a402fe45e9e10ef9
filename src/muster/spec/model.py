"""The job: one model for the job file, the flags of `muster run` and the Python API.

Every field carries its flag (`Flag`), so the command line, the help and the error messages cannot differ from
the job file. Field names are the long flags with underscores.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from muster.spec import values
from muster.spec.flags import Flag, flags_of
from muster.spec.passthrough import settle

_TIME = "a length of time: seconds, or 90s, 10m, 1h30m"

Count = Annotated[int, BeforeValidator(values.whole_number), Field(ge=1)]
CountOrZero = Annotated[int, BeforeValidator(values.whole_number), Field(ge=0)]
Line = Annotated[str, AfterValidator(values.one_line)]
Word = Annotated[str, AfterValidator(values.no_nul)]
Seconds = Annotated[float, BeforeValidator(values.seconds)]
Deadline = Annotated[Seconds, AfterValidator(values.more_than_zero)]
EnvName = Annotated[str, AfterValidator(values.env_name)]
PassedValue = Annotated[str, AfterValidator(values.no_control)]


def _empty_for_none(value: Any) -> Any:
    """`env:` with every entry commented out reads as nothing; it means no entries."""
    return {} if value is None else value


def _slurm(help: str, allowed: str = "one line of text", **more: Any) -> Flag:
    """The flag of a field that is sbatch's own option of the same name."""
    return Flag(help=help, allowed=allowed, group="Slurm", **more)


class JobSpec(BaseModel):
    """What to run, on how many nodes, and how: validated, immutable, and complete with defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Annotated[
        list[Word],
        BeforeValidator(values.command_words),
        AfterValidator(values.runnable),
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
        AfterValidator(values.job_name),
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
            "Number of nodes; inside an allocation all of it unless given.",
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
    ray: Annotated[
        bool,
        Flag(
            "Start a Ray cluster; --no-ray runs COMMAND on a plain gang of nodes.",
            group="Job",
            allowed="true or false",
        ),
    ] = True
    dashboard: Annotated[
        bool,
        Flag("Start Ray's dashboard, on the head's loopback.", group="Job", allowed="true or false"),
    ] = False
    port_base: Annotated[
        Annotated[int, BeforeValidator(values.whole_number), Field(ge=1024, le=64536)] | None,
        Flag(
            "First port of the block that Ray uses on every node. Default: a free one, outside the ephemeral range.",
            group="Job",
            allowed="a whole number from 1024 to 64536",
            metavar="PORT",
        ),
    ] = None

    python: Annotated[
        Line | None,
        Flag(
            "Python of the nodes. Default: active virtualenv or conda, ./.venv, else python3 after --setup.",
            group="Environment",
            allowed="the path or name of an interpreter",
            metavar="PATH",
        ),
    ] = None
    setup: Annotated[
        Annotated[str, AfterValidator(values.script)] | None,
        Flag(
            "Shell text to run on every node first, as in 'module load cuda; source env.sh'.",
            group="Environment",
            allowed="shell text",
            metavar="CMD",
        ),
    ] = None
    env: Annotated[
        dict[EnvName, Word],
        BeforeValidator(_empty_for_none),
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

    gather_timeout: Annotated[
        Deadline,
        Flag(
            "Time for every node to arrive.",
            group="Deadlines",
            allowed=_TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = 600.0
    start_timeout: Annotated[
        Deadline,
        Flag(
            "Time for Ray to be up on all nodes.",
            group="Deadlines",
            allowed=_TIME + ", more than 0",
            metavar="TIME",
        ),
    ] = 300.0
    stop_grace: Annotated[
        Seconds,
        Flag("Time for the driver between TERM and KILL.", group="Deadlines", allowed=_TIME, metavar="TIME"),
    ] = 30.0

    partition: Annotated[
        Line | None, _slurm("Partition to submit to.", short="-p", metavar="NAME", sbatch="partition")
    ] = None
    account: Annotated[Line | None, _slurm("Account to charge.", short="-A", metavar="NAME", sbatch="account")] = None
    qos: Annotated[Line | None, _slurm("Quality of service.", short="-q", metavar="NAME", sbatch="qos")] = None
    time: Annotated[
        Annotated[str, BeforeValidator(values.slurm_time)] | None,
        _slurm(
            "Time limit, as in 30, 1:30:00 or 2-12.",
            allowed="minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS or UNLIMITED",
            short="-t",
            metavar="LIMIT",
            sbatch="time",
        ),
    ] = None
    nodelist: Annotated[
        Line | None,
        _slurm("Hosts that must be among the nodes.", short="-w", metavar="HOSTS", sbatch="nodelist"),
    ] = None
    exclude: Annotated[Line | None, _slurm("Hosts not to use.", short="-x", metavar="HOSTS", sbatch="exclude")] = None
    constraint: Annotated[
        Line | None, _slurm("Features that nodes must have.", short="-C", metavar="LIST", sbatch="constraint")
    ] = None
    gres: Annotated[
        Line | None,
        _slurm("Generic resources of each node, as in gpu:a100:4.", metavar="LIST", sbatch="gres"),
    ] = None
    mem: Annotated[
        Annotated[str, BeforeValidator(values.memory)] | None,
        _slurm(
            "Memory of each node, as in 64G; 0 is all.",
            allowed="a number of megabytes, or with a unit: 512M, 64G, 1T",
            metavar="SIZE",
            sbatch="mem",
        ),
    ] = None
    exclusive: Annotated[
        bool | Literal["user", "mcs", "topo"] | None,
        BeforeValidator(values.exclusive),
        _slurm(
            "Share the nodes with no other job, or only with =user's own.",
            allowed="nothing, true, false, user, mcs or topo",
            metavar="[=user|mcs|topo]",
            sbatch="exclusive",
        ),
    ] = None
    reservation: Annotated[Line | None, _slurm("Reservation to run in.", metavar="NAME", sbatch="reservation")] = None
    dependency: Annotated[
        Line | None,
        _slurm("Wait for other jobs, as in afterok:123.", short="-d", metavar="LIST", sbatch="dependency"),
    ] = None
    output: Annotated[
        Line | None, _slurm("File for the job's own output.", short="-o", metavar="FILE", sbatch="output")
    ] = None
    switches: Annotated[
        Line | None,
        _slurm("Most leaf switches to spread over, as in 1@10:00.", metavar="N[@TIME]", sbatch="switches"),
    ] = None
    comment: Annotated[Line | None, _slurm("Comment of the Slurm job.", metavar="TEXT", sbatch="comment")] = None
    sbatch: Annotated[
        dict[str, PassedValue | None],
        BeforeValidator(_empty_for_none),
        _slurm(
            "Any other sbatch option; KEY alone if it has no value, KEY= to remove a default.",
            allowed="KEY=VALUE on one line",
            metavar="KEY=VALUE",
        ),
    ] = Field(default_factory=dict)
    """Long option name to value; None for an option without value; "" to submit without this option."""

    @model_validator(mode="before")
    @classmethod
    def _one_place_for_each_option(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        settled = settle(data, FLAGS)
        if settled.problems:
            raise ValueError("\n".join(f"sbatch.{key} {problem}" for key, problem in settled.problems))
        return settled.values

    @property
    def nodes_given(self) -> bool:
        """Whether the number of nodes was asked for; if not, an allocation is used as large as it is."""
        return "nodes" in self.model_fields_set

    def sbatch_requests(self) -> dict[str, str | None]:
        """Every sbatch option this job asks for, by long name: None has no value, "" is to be left out.

        Without what Muster decides (nodes, tasks, name): that is the Slurm backend's to add.
        """
        asked: dict[str, str | None] = {}
        for field, flag in FLAGS.items():
            value = getattr(self, field)
            if flag.sbatch and value is not None:
                asked[flag.sbatch] = {True: None, False: ""}[value] if isinstance(value, bool) else str(value)
        return {**asked, **self.sbatch}


FLAGS = flags_of(JobSpec)
"""Every field's flag, in the model's order."""
