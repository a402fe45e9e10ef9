"""The job's fields that are sbatch's own options, and those about beginning again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from muster.spec import arrays, validators
from muster.spec.flags import Flag
from muster.spec.types import Count, CountOrZero, Line, PassedValue, empty_for_none, slurm_flag


class SlurmFields(BaseModel):
    """sbatch's own options, by their long names; any other passes through `sbatch`."""

    partition: Annotated[
        Line | None, slurm_flag("Partition to submit to.", short="-p", metavar="NAME", sbatch="partition")
    ] = None
    account: Annotated[Line | None, slurm_flag("Account to charge.", short="-A", metavar="NAME", sbatch="account")] = (
        None
    )
    qos: Annotated[Line | None, slurm_flag("Quality of service.", short="-q", metavar="NAME", sbatch="qos")] = None
    time: Annotated[
        Annotated[str, BeforeValidator(validators.slurm_time)] | None,
        slurm_flag(
            "Time limit, as in 30, 1:30:00 or 2-12.",
            allowed="minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS or UNLIMITED",
            short="-t",
            metavar="LIMIT",
            sbatch="time",
        ),
    ] = None
    nodelist: Annotated[
        Line | None,
        slurm_flag("Hosts that must be among the nodes.", short="-w", metavar="HOSTS", sbatch="nodelist"),
    ] = None
    exclude: Annotated[Line | None, slurm_flag("Hosts not to use.", short="-x", metavar="HOSTS", sbatch="exclude")] = (
        None
    )
    constraint: Annotated[
        Line | None, slurm_flag("Features that nodes must have.", short="-C", metavar="LIST", sbatch="constraint")
    ] = None
    gres: Annotated[
        Line | None,
        slurm_flag("Generic resources of each node, as in gpu:a100:4.", metavar="LIST", sbatch="gres"),
    ] = None
    mem: Annotated[
        Annotated[str, BeforeValidator(validators.memory)] | None,
        slurm_flag(
            "Memory of each node, as in 64G; 0 is all.",
            allowed="a number of megabytes, or with a unit: 512M, 64G, 1T",
            metavar="SIZE",
            sbatch="mem",
        ),
    ] = None
    exclusive: Annotated[
        bool | Literal["user", "mcs", "topo"] | None,
        BeforeValidator(validators.exclusive),
        slurm_flag(
            "Share the nodes with no other job, or only with =user's own.",
            allowed="nothing, true, false, user, mcs or topo",
            metavar="[=user|mcs|topo]",
            sbatch="exclusive",
        ),
    ] = None
    reservation: Annotated[Line | None, slurm_flag("Reservation to run in.", metavar="NAME", sbatch="reservation")] = (
        None
    )
    dependency: Annotated[
        Line | None,
        slurm_flag("Wait for other jobs, as in afterok:123.", short="-d", metavar="LIST", sbatch="dependency"),
    ] = None
    output: Annotated[
        Line | None, slurm_flag("File for the job's own output.", short="-o", metavar="FILE", sbatch="output")
    ] = None
    switches: Annotated[
        Line | None,
        slurm_flag("Most leaf switches to spread over, as in 1@10:00.", metavar="N[@TIME]", sbatch="switches"),
    ] = None
    comment: Annotated[Line | None, slurm_flag("Comment of the Slurm job.", metavar="TEXT", sbatch="comment")] = None
    signal: Annotated[
        Annotated[str, AfterValidator(validators.slurm_signal)] | None,
        slurm_flag(
            "Signal the driver gets before the time limit, as in USR2@120 (seconds).",
            allowed="SIGNAL@SECONDS, as in USR2@120",
            metavar="SIG@SEC",
            sbatch="signal",
        ),
    ] = None
    array: Annotated[
        Annotated[str, AfterValidator(arrays.checked)] | None,
        slurm_flag(
            "Job array, as in 0-7%2: every task is a run of its own.",
            allowed="task numbers as sbatch takes them: 0-7, 1,3,5, 0-15:4, with %N for at most N at a time",
            short="-a",
            metavar="LIST",
            sbatch="array",
        ),
    ] = None
    sbatch: Annotated[
        dict[str, PassedValue | None],
        BeforeValidator(empty_for_none),
        slurm_flag(
            "Any other sbatch option; KEY alone if it has no value, KEY= to remove a default.",
            allowed="KEY=VALUE on one line",
            metavar="KEY=VALUE",
        ),
    ] = Field(default_factory=dict)
    """Long option name to value; None for an option without value; "" to submit without this option."""


class RestartFields(BaseModel):
    """When the job begins again by itself."""

    requeue_on: Annotated[
        list[Annotated[str, AfterValidator(validators.requeue_cause)]],
        BeforeValidator(validators.comma_list),
        Flag(
            "Ends after which the job is put back into the queue: timeout, preempt, node-fail, stall, exit=N.",
            group="Restarts",
            allowed="timeout, preempt, node-fail, stall, exit=N; several with commas",
            metavar="LIST",
        ),
    ] = Field(default_factory=list)
    max_requeues: Annotated[
        CountOrZero,
        Flag("How often at most.", group="Restarts", allowed="a whole number, 0 or more", metavar="N"),
    ] = 3
    chain: Annotated[
        Count,
        Flag(
            "Submit N jobs that run one after the other under one run id, until one succeeds.",
            group="Restarts",
            allowed="a whole number, 1 or more",
            metavar="N",
        ),
    ] = 1
