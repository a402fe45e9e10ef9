"""Variables that NeMo-RL reads in its driver, as ray.sub sets them."""

from __future__ import annotations

from collections.abc import Mapping

_TIMES = {"NRL_JOB_START_EPOCH": "job_start", "NRL_RAY_READY_EPOCH": "ray_ready"}  # each with the timing of the status


def driver_variables(timings: Mapping[str, float | None], head: str | None) -> dict[str, str]:
    """Return the times, in seconds with a fraction, that are known, and the host of the head in a Slurm job.

    >>> driver_variables({"job_start": 1.25, "ray_ready": None}, "n17")
    {'NRL_JOB_START_EPOCH': '1.250', 'SLURM_MASTER_NODE': 'n17'}
    """
    known = {name: timings.get(timing) for name, timing in _TIMES.items()}
    times = {name: f"{time:.3f}" for name, time in known.items() if time is not None}
    return times if head is None else {**times, "SLURM_MASTER_NODE": head}


def affinity_variable(path: str | None) -> dict[str, str]:
    """Return the variable of the GPU affinity file; NeMo-RL's driver passes its environment on to all workers."""
    return {} if path is None else {"NRL_GPU_CPU_AFFINITY_FILE": path}
