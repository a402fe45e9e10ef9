"""An agent's identity, and the job file as agents use it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.agent.service_model import service_plans
from muster.lifecycle.config import RunConfig
from muster.lifecycle.node_checks import selected_checks
from muster.lifecycle.services import ServicePlan
from muster.rundir import AttemptPaths, RunPaths
from muster.rundir.hosts import STEP_NODES_VARIABLE, hosts_by_index
from muster.rundir.node_groups import NodeGroup, groups_of, nodes_without_ray


@dataclass(frozen=True)
class Identity:
    """The node and the attempt of this agent. Its role follows from the node index, never from an address."""

    node_index: int
    host: str
    run: RunPaths
    attempt: AttemptPaths
    local: bool  # virtual nodes of one machine: loopback only

    @classmethod
    def from_environment(cls, run_dir: str, env: Mapping[str, str]) -> Identity:
        """Read the identity from the MUSTER_ variables, which the prelude sets from Slurm's or the local launcher's."""
        run = RunPaths(run_dir)
        return cls(
            node_index=int(env["MUSTER_RANK"]),
            host=env["MUSTER_HOST"],
            run=run,
            attempt=run.attempt(int(env["MUSTER_ATTEMPT"])),
            local=env.get("MUSTER_BACKEND") == "local",
        )


@dataclass(frozen=True)
class Job:
    """The fields of the resolved job that agents use, named as in the job file."""

    command: Sequence[str]
    workdir: str
    nodes: int  # without spares; fewer than in the file if Slurm has allocated fewer
    min_nodes: int | None
    procs_per_node: int | None  # a gang; None: one driver
    ray: bool
    dashboard: bool
    port_base: int | None
    dedicated_head: bool
    dedicated_head_cpus: bool
    ray_start_arg: Sequence[str]
    ray_resource: Mapping[str, int]
    ray_label: Mapping[str, str]
    ray_unset: Sequence[str]
    gpu_affinity_file: str | None
    object_store_memory: int | None
    large_from: int
    require_auth: bool
    gcs_recovery: bool
    interface: str | None
    cpus_per_node: int | None
    gpus_per_node: int | None
    gres: str | None
    groups: Sequence[NodeGroup]
    gather_timeout: float
    start_timeout: float
    stop_grace: float
    stall_timeout: float | None
    on_hang: str | None
    hang_min_time: float
    signal_grace: float  # the driver's grace period when Slurm, not a user, ends the job
    log_limit: int  # bytes of each log of the driver, a rank, a guest or a node; 0: no limit
    kill_wait: float | None  # from Slurm's first signal to its SIGKILL
    ray_logs: str
    ray_logs_max: int
    spares: int
    last_call: float
    on_node_loss: str
    max_restarts: int
    restart_on_driver_failure: bool
    control_exit_codes: bool
    no_progress_limit: int
    segment: int
    health_check: str | None
    spare_check_interval: float
    node_checks: str  # level of the built-in checks
    node_check: Mapping[str, bool | float]  # changes of it
    node_memory: str | None  # directory in which nodes that failed are recorded
    on_bad_node: str | None
    services: Sequence[ServicePlan]

    @property
    def step_nodes(self) -> int:
        """The number of nodes with an agent: the job's nodes and the spares."""
        return self.nodes + self.spares

    @property
    def selected_checks(self) -> dict[str, float | None]:
        """The thresholds of the built-in checks that nodes run, by name."""
        return selected_checks(self.node_checks, self.node_check)

    @classmethod
    def load(cls, run: RunPaths, env: Mapping[str, str] = os.environ) -> Job:
        """Read the job; the job script has put the number of the step's nodes into `env`."""
        with open(run.job, encoding="utf-8") as file:
            values: dict[str, Any] = json.load(file)
        values["groups"] = groups_of(values["groups"])
        values["services"] = service_plans(values.get("services"), values["groups"])
        if values["min_nodes"] is not None and STEP_NODES_VARIABLE in env:
            values["nodes"] = int(env[STEP_NODES_VARIABLE]) - values["spares"]
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})


def run_config(identity: Identity, job: Job, topology: bool) -> RunConfig:
    """Return the state machine's view of the job. `topology`: ranks follow the nodes' locations."""
    return RunConfig(
        hosts=hosts_by_index(identity.attempt, job.step_nodes),
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
        min_nodes=job.min_nodes,
        gang=job.procs_per_node is not None,
        services=job.services or (),
        without_ray=nodes_without_ray(job.groups),
    )


def slurm_job_id(env: Mapping[str, str]) -> str | None:
    """Return the id of the Slurm job; for an array task ARRAY_TASK, the id under which it was submitted."""
    if "SLURM_ARRAY_TASK_ID" in env:
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    return env.get("SLURM_JOB_ID")
