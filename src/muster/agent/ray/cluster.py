"""The run's Ray cluster: which options every node gets, where it is, and what a driver finds in its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from muster.agent.job import Identity, Job
from muster.agent.ray import settings
from muster.agent.ray.resources import probe, requested_gpus
from muster.agent.ray.tuning import defaults, in_force
from muster.rundir.node_groups import GROUP_VARIABLE, group_of

DASHBOARD_HERE = 8265  # the port at the user's end of the tunnel: Ray's own, which people know


class RayCluster:
    """Empty until the head has an address."""

    def __init__(self, identity: Identity, job: Job) -> None:
        self._identity, self._job = identity, job
        self.address: str | None = None
        self.dashboard: int | None = None

    def options(self, rank: int) -> dict[str, Any] | None:
        """For this node's agent; None in a run without Ray."""
        job, group = self._job, group_of(rank, self._job.groups)
        if not job.ray:
            return None
        has = group or job
        return {
            "cpus": has.cpus_per_node,
            "gpus": requested_gpus(has.gpus_per_node, has.gres),
            "nodes": job.nodes,
            "group": group.name if group else None,
            "local": self._identity.local,
            "dashboard": job.dashboard,
            "port_base": job.port_base,
            "dedicated_head": job.dedicated_head,
            "store": job.object_store_memory,
            "large_from": job.large_from,
            "logs": job.ray_logs,
            "logs_max": job.ray_logs_max,
            "require_auth": job.require_auth,
        }

    def environment(self, base: Mapping[str, str], processes: int = 1) -> dict[str, str]:
        """What the driver, every guest and every shell on the cluster find, on top of the job's own variables.

        The node's CPUs are divided among so many processes. Ray itself sets OMP_NUM_THREADS for tasks, by their CPUs.
        """
        group = group_of(self._identity.rank, self._job.groups)
        cpus = (group or self._job).cpus_per_node or probe(base).cpus
        base = {
            "OMP_NUM_THREADS": str(max(1, cpus // processes)),
            **base,
            **({GROUP_VARIABLE: group.name} if group else {}),
        }
        if self.address is None:
            return base
        tuning = defaults(self._job.nodes, self._job.large_from)
        return {**settings.environment(base, self._identity.run.ray_token, tuning), "RAY_ADDRESS": self.address}

    def published(self, base: Mapping[str, str]) -> dict[str, Any]:
        """For the status: where it is, and the settings in force."""
        tuning = in_force(base, self._job.nodes, self._job.large_from)
        board = {"host": self._identity.host, "port": self.dashboard} if self.dashboard is not None else None
        return {"address": self.address, "dashboard": board, "tuning": tuning}

    def dashboard_line(self) -> str | None:
        """What to type on one's own machine to see the dashboard, which listens on the head's loopback alone."""
        if self.dashboard is None:
            return None
        if self._identity.local:
            return f"dashboard: http://127.0.0.1:{self.dashboard}"
        login = os.environ.get("SLURM_SUBMIT_HOST")
        jump = f"-J {login} " if login and login != self._identity.host else ""
        tunnel = f"ssh -N {jump}-L {DASHBOARD_HERE}:127.0.0.1:{self.dashboard} {self._identity.host}"
        return f"dashboard: {tunnel}   then http://localhost:{DASHBOARD_HERE}"
