"""Define the job's fields for sbatch options and for requeues."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from muster.spec import arrays, validators
from muster.spec.flags import Flag
from muster.spec.types import Count, CountOrZero, Line, PassedValue


def _slurm_flag(help: str, allowed: str = "one line of text", **more: Any) -> Flag:
    """Return the flag of a field that sets the sbatch option of the same name."""
    return Flag(help=help, allowed=allowed, group="Slurm", **more)


def validate_gpus(gpus_per_node: int | None, gres: str | None) -> None:
    """Raise ValueError if GPUs are requested in both ways: Slurm would combine the two requests."""
    kinds = [part.strip().removeprefix("gres/").partition(":")[0] for part in (gres or "").split(",")]
    if gpus_per_node is not None and "gpu" in kinds:
        request = "1 GPU per node conflicts" if gpus_per_node == 1 else f"{gpus_per_node} GPUs per node conflict"
        raise ValueError(
            f"{request} with --gres {gres}, which requests GPUs, too; give one of them"
            " (--sbatch gres= removes the gres of a settings or job file)"
        )


class SlurmFields(BaseModel):
    """sbatch options by their long names; `sbatch` passes any other option through."""

    partition: Annotated[
        Line | None, _slurm_flag("Partition to submit to.", short="-p", metavar="NAME", sbatch="partition")
    ] = None
    account: Annotated[Line | None, _slurm_flag("Account to charge.", short="-A", metavar="NAME", sbatch="account")] = (
        None
    )
    qos: Annotated[Line | None, _slurm_flag("Quality of service.", short="-q", metavar="NAME", sbatch="qos")] = None
    time: Annotated[
        Annotated[str, BeforeValidator(validators.slurm_time)] | None,
        _slurm_flag(
            "Time limit: minutes, H:MM:SS or DAYS-HOURS, as in 30, 1:30:00, 2-12. Default: the partition's.",
            allowed="minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS or UNLIMITED",
            short="-t",
            metavar="LIMIT",
            sbatch="time",
        ),
    ] = None
    nodelist: Annotated[
        Line | None,
        _slurm_flag("Hosts to include.", short="-w", metavar="HOSTS", sbatch="nodelist"),
    ] = None
    exclude: Annotated[Line | None, _slurm_flag("Hosts to exclude.", short="-x", metavar="HOSTS", sbatch="exclude")] = (
        None
    )
    constraint: Annotated[
        Line | None, _slurm_flag("Features that every node must have.", short="-C", metavar="LIST", sbatch="constraint")
    ] = None
    gres: Annotated[
        Line | None,
        _slurm_flag("Generic resources per node, as in gpu:a100:4.", metavar="LIST", sbatch="gres"),
    ] = None
    mem: Annotated[
        Annotated[str, BeforeValidator(validators.memory)] | None,
        _slurm_flag(
            "Memory per node, in megabytes or as 64G; 0 requests all of it.",
            allowed="a number of megabytes, or with a unit: 512M, 64G, 1T",
            metavar="SIZE",
            sbatch="mem",
        ),
    ] = None
    exclusive: Annotated[
        bool | Literal["user", "mcs", "topo"] | None,
        BeforeValidator(validators.exclusive),
        _slurm_flag(
            "Do not share nodes with other jobs; =user shares them with jobs of the same user. Default: share only if "
            "--cpus-per-node is given.",
            allowed="nothing, true, false, user, mcs or topo",
            metavar="[=user|mcs|topo]",
            sbatch="exclusive",
        ),
    ] = None
    reservation: Annotated[Line | None, _slurm_flag("Reservation to use.", metavar="NAME", sbatch="reservation")] = None
    dependency: Annotated[
        Line | None,
        _slurm_flag("Jobs to wait for, as in afterok:123.", short="-d", metavar="LIST", sbatch="dependency"),
    ] = None
    output: Annotated[
        Line | None,
        _slurm_flag(
            "File for the job script's messages; the driver's output is in the run directory (`muster logs`). Default: "
            "slurm-JOBID.out in the run directory.",
            short="-o",
            metavar="FILE",
            sbatch="output",
        ),
    ] = None
    switches: Annotated[
        Line | None,
        _slurm_flag("Maximum number of leaf switches, as in 1@10:00.", metavar="N[@TIME]", sbatch="switches"),
    ] = None
    comment: Annotated[Line | None, _slurm_flag("Comment for the Slurm job.", metavar="TEXT", sbatch="comment")] = None
    signal: Annotated[
        Annotated[str, AfterValidator(validators.slurm_signal)] | None,
        _slurm_flag(
            "Signal to send to the driver SEC seconds before the time limit, as in USR2@120. Default: none.",
            allowed="SIGNAL@SECONDS, as in USR2@120",
            metavar="SIG@SEC",
            sbatch="signal",
        ),
    ] = None
    array: Annotated[
        Annotated[str, AfterValidator(arrays.task_list)] | None,
        _slurm_flag(
            "Submit a job array, as in 0-7%2; every task is a separate run.",
            allowed="task numbers as for sbatch: 0-7, 1,3,5, 0-15:4, with %N for at most N at a time",
            short="-a",
            metavar="LIST",
            sbatch="array",
        ),
    ] = None
    sbatch: Annotated[
        dict[str, PassedValue | None],
        BeforeValidator(validators.empty_for_none),
        _slurm_flag(
            "Any other sbatch option; KEY for an option without value, KEY= to remove a default. May be repeated.",
            allowed="KEY=VALUE on one line",
            metavar="KEY=VALUE",
        ),
    ] = Field(default_factory=dict)
    """Values by long option name: None for an option without value, "" to submit without the option."""


class RequeueFields(BaseModel):
    """The conditions for further jobs of the same run."""

    requeue_on: Annotated[
        list[Annotated[str, AfterValidator(validators.requeue_cause)]],
        BeforeValidator(validators.comma_list),
        Flag(
            "Reasons to requeue the job: timeout, preempt, node-fail, stall, exit=N. Default: none.",
            group="Restarts",
            allowed="timeout, preempt, node-fail, stall, exit=N; several with commas",
            metavar="LIST",
        ),
    ] = Field(default_factory=list)
    max_requeues: Annotated[
        CountOrZero,
        Flag("Maximum number of requeues.", group="Restarts", allowed="a whole number, 0 or more", metavar="N"),
    ] = 3
    chain: Annotated[
        Count,
        Flag(
            "Submit N jobs that run in sequence under one run id until one succeeds.",
            group="Restarts",
            allowed="a whole number, 1 or more",
            metavar="N",
        ),
    ] = 1
