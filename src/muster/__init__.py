"""Run Ray jobs and gangs of processes on Slurm or on this machine.

>>> import muster
>>> result = muster.run(muster.JobSpec(nodes=2, backend="local", command=["python", "train.py"]))  # doctest: +SKIP
>>> result.exit_code  # doctest: +SKIP
0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "BackendError",
    "JobSpec",
    "RunHandle",
    "RunResult",
    "SpecError",
    "beat",
    "exclude_node",
    "load_job",
    "no_restart",
    "request_restart",
    "run",
    "section",
    "service",
    "submit",
    "submit_array",
]

if TYPE_CHECKING:
    from muster.api import BackendError, JobSpec, RunHandle, RunResult, SpecError, load_job, run, submit, submit_array
    from muster.control_requests import exclude_node, no_restart, request_restart
    from muster.progress import beat
    from muster.sections import section
    from muster.service_lookup import service


def __getattr__(name: str) -> Any:
    """Load the API on first use: importing the agent's packages must not import the libraries of the command line."""
    if name == "beat":  # drivers import it without the libraries of the command line
        from muster.progress import beat

        return beat
    if name == "section":
        from muster.sections import section

        return section
    if name in ("exclude_node", "no_restart", "request_restart"):
        from muster import control_requests

        return getattr(control_requests, name)
    if name == "service":
        from muster.service_lookup import service

        return service
    if name in __all__:
        from muster import api

        return getattr(api, name)
    raise AttributeError(f"module 'muster' has no attribute {name!r}")
