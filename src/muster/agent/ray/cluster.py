"""The run's Ray cluster as the leader knows it: options of each node, address, environment of drivers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from muster.agent.job import Identity, Job
from muster.agent.ray import settings
from muster.agent.ray.resources import probe, requested_gpus
from muster.agent.ray.settings import RayOptions
from muster.agent.ray.tuning import defaults, effective_settings
from muster.rundir.node_groups import GROUP_VARIABLE, group_of, nodes_without_ray

TUNNEL_PORT = 8265  # of the dashboard on the user's machine: Ray's default, which users know


class RayCluster:
    """`address` is None until the head has one."""

    def __init__(self, identity: Identity, job: Job) -> None:
        self._identity, self._job = identity, job
        self.address: str | None = None
        self.dashboard: int | None = None
        self.gcs_restarts = 0  # of its control service, in this cycle
        self._nodes = job.nodes - len(nodes_without_ray(job.groups))

    def options(self, node_index: int) -> RayOptions | None:
        """Return the options for this node's agent; None if it does not belong to a Ray cluster."""
        job, group = self._job, group_of(node_index, self._job.groups)
        if not job.ray or (group is not None and not group.ray):
            return None
        has = group or job
        return RayOptions(
            cpus=has.cpus_per_node,
            gpus=requested_gpus(has.gpus_per_node, has.gres),
            nodes=self._nodes,
            group=group.name if group else None,
            local=self._identity.local,
            dashboard=job.dashboard,
            port_base=job.port_base,
            dedicated_head=job.dedicated_head or job.dedicated_head_cpus,
            head_cpus=job.dedicated_head_cpus,
            start_args=tuple(job.ray_start_arg),
            resources=has.ray_resource,
            labels=has.ray_label,
            unset=tuple(job.ray_unset),
            gpu_affinity_file=job.gpu_affinity_file,
            store=job.object_store_memory,
            large_from=job.large_from,
            logs=job.ray_logs,
            logs_max=job.ray_logs_max,
            require_auth=job.require_auth,
            gcs_recovery=job.gcs_recovery,
        )

    def environment(self, base: Mapping[str, str], processes: int = 1) -> dict[str, str]:
        """Return the environment of the driver, guests and shells; `base` holds the job's variables.

        OMP_NUM_THREADS divides the node's CPUs by `processes`. Ray itself sets it for tasks, by their CPUs.
        """
        group = group_of(self._identity.node_index, self._job.groups)
        cpus = (group or self._job).cpus_per_node or probe(base).cpus
        base = {
            "OMP_NUM_THREADS": str(max(1, cpus // processes)),
            **base,
            **({GROUP_VARIABLE: group.name} if group else {}),
        }
        if self.address is None or (group is not None and not group.ray):
            return base
        tuning = defaults(self._nodes, self._job.large_from)
        return {**settings.environment(base, self._identity.run.ray_token, tuning), "RAY_ADDRESS": self.address}

    def status(self, base: Mapping[str, str]) -> dict[str, Any]:
        """Return the cluster's part of the status: addresses, restarts of its GCS, effective settings."""
        tuning = effective_settings(base, self._nodes, self._job.large_from)
        dashboard = {"host": self._identity.host, "port": self.dashboard} if self.dashboard is not None else None
        return {
            "address": self.address,
            "dashboard": dashboard,
            "gcs_restarts": self.gcs_restarts,
            "tuning": tuning,
        }

    def dashboard_line(self) -> str | None:
        """Return the line with which users open the dashboard, which listens only on the head's loopback."""
        if self.dashboard is None:
            return None
        if self._identity.local:
            return f"dashboard: http://127.0.0.1:{self.dashboard}"
        login = os.environ.get("SLURM_SUBMIT_HOST")
        jump = f"-J {login} " if login and login != self._identity.host else ""
        tunnel = f"ssh -N {jump}-L {TUNNEL_PORT}:127.0.0.1:{self.dashboard} {self._identity.host}"
        return f"dashboard: {tunnel}   then http://localhost:{TUNNEL_PORT}"
