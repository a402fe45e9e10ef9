"""What an agent knows of its job: its own identity, and (for the leader) the job file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.agent.services.model import plans_of
from muster.lifecycle.config import RunConfig
from muster.lifecycle.services import ServicePlan
from muster.rundir import AttemptPaths, RunPaths
from muster.rundir.hosts import hosts_by_rank
from muster.rundir.node_groups import NodeGroup, groups_of


@dataclass(frozen=True)
class Identity:
    """Which node of which attempt this agent is. Role comes from the rank, never from an address."""

    rank: int
    host: str
    run: RunPaths
    attempt: AttemptPaths
    local: bool  # virtual nodes of one machine: loopback only

    @classmethod
    def from_environment(cls, run_dir: str, env: Mapping[str, str]) -> Identity:
        """Slurm numbers the step's tasks; the local launcher sets the same MUSTER_ variables itself."""
        run = RunPaths(run_dir)
        return cls(
            rank=int(env["MUSTER_RANK"]),
            host=env["MUSTER_HOST"],
            run=run,
            attempt=run.attempt(int(env["MUSTER_ATTEMPT"])),
            local=env.get("MUSTER_BACKEND") == "local",
        )


@dataclass(frozen=True)
class Job:
    """The resolved job, as far as agents act on it. Field names are the job file's."""

    command: Sequence[str]
    workdir: str
    nodes: int
    procs_per_node: int | None  # a gang; None: one driver
    ray: bool
    dashboard: bool
    port_base: int | None
    dedicated_head: bool
    object_store_memory: int | None
    large_from: int
    require_auth: bool
    interface: str | None
    cpus_per_node: int | None
    gpus_per_node: int | None
    gres: str | None
    groups: Sequence[NodeGroup]
    gather_timeout: float
    start_timeout: float
    stop_grace: float
    stall_timeout: float | None
    signal_grace: float  # how long the driver may take when Slurm, not a person, ends the job
    kill_wait: float | None  # from Slurm's first signal to its SIGKILL
    ray_logs: str
    ray_logs_max: int
    spares: int
    last_call: float
    on_node_loss: str
    max_restarts: int
    restart_on_driver_failure: bool
    no_progress_limit: int
    segment: int
    health_check: str | None
    spare_check_interval: float
    services: Sequence[ServicePlan]

    @property
    def step_nodes(self) -> int:
        """Nodes with an agent: those the job works on, and the spares."""
        return self.nodes + self.spares

    @classmethod
    def load(cls, run: RunPaths) -> Job:
        with open(run.job, encoding="utf-8") as file:
            values: dict[str, Any] = json.load(file)
        values["groups"], values["services"] = groups_of(values["groups"]), plans_of(values.get("services"))
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})


def plan_of(identity: Identity, job: Job, topology: bool) -> RunConfig:
    """What the protocol has to know of the job, and whether ranks are to follow the nodes' places."""
    return RunConfig(
        hosts=hosts_by_rank(identity.attempt, job.step_nodes),
        ray=job.ray,
        gather_timeout=job.gather_timeout,
        start_timeout=job.start_timeout,
        spares=job.spares,
        last_call=job.last_call,
        on_node_loss=job.on_node_loss,
        max_restarts=job.max_restarts,
        restart_on_driver_failure=job.restart_on_driver_failure,
        restart_grace=job.stop_grace,
        no_progress_limit=job.no_progress_limit,
        topology=topology,
        segment=job.segment,
        services=job.services or (),
    )


def slurm_job_id(env: Mapping[str, str]) -> str | None:
    """Of a task of an array the name by which it was submitted, not the job that Slurm makes of it."""
    if "SLURM_ARRAY_TASK_ID" in env:
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env.get("SLURM_JOB_ID")
