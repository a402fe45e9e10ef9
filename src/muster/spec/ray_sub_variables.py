"""List every variable of NeMo-RL's ray.sub with its effect in Muster, for --from-env and docs/reference/ray-sub.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Support(Enum):
    """What `--from-env` does with a variable."""

    SUPPORTED = "supported"  # its value has the same effect as with ray.sub
    SET = "set"  # ray.sub sets it for the driver, and Muster does: a value of the submitting shell is replaced
    REPORTED = "reported"  # it has no effect, and a note says so


@dataclass(frozen=True)
class RaySubVariable:
    """One variable. `text` says what replaces or implements it; notes and the documentation use it."""

    support: Support
    text: str
    field: str | None = None  # the job's field that takes the value as it is


def _supported(text: str, field: str | None = None) -> RaySubVariable:
    return RaySubVariable(Support.SUPPORTED, text, field)


def _reported(text: str) -> RaySubVariable:
    return RaySubVariable(Support.REPORTED, text)


_PORT = _reported("Muster uses a free block of ports on every node; to fix it, use --port-base")

RAY_SUB_VARIABLES = {
    # -- the job
    "COMMAND": _supported("the command, as text for bash; without it, use `muster up`", "command"),
    "CONTAINER": _supported(
        "`--container-image`, with `--container-args=--no-container-mount-home`", "container_image"
    ),
    "MOUNTS": _supported("`--container-mounts`; the run and working directories are mounted without being listed"),
    "SETUP_COMMAND": _supported("`--setup`; its exports reach Ray and the driver"),
    "BASE_LOG_DIR": _supported("`--runs-dir`; each run has a directory there, and each attempt one in it", "runs_dir"),
    "GPUS_PER_NODE": _supported(
        "`--gpus-per-node`; without it no GPUs are requested, and a note says so", "gpus_per_node"
    ),
    "CPUS_PER_WORKER": _supported(
        "`--cpus-per-node`; default: all CPUs of the node, without asking Slurm", "cpus_per_node"
    ),
    "DEDICATED_RAY_HEAD": _supported("1: `--dedicated-head-cpus`; 0: no effect, as there"),
    "OMP_NUM_THREADS": _supported(
        "passed on; default 16, as there (without `--from-env`: the CPUs of the driver's node)"
    ),
    "UV_CACHE_DIR_OVERRIDE": _supported("mounted as `/root/.cache/uv`"),
    "UV_CACHE_DIR": _supported("unset in a container, as there"),
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": _supported("passed on; default 0"),
    "RAY_DEBUG": _supported("`legacy`: `--ray-start-arg=--ray-debugger-external`; passed on in any case"),
    "NRL_GPU_CPU_AFFINITY_FILE": _supported(
        "`--gpu-affinity-file`; default `/tmp/nrl_gpu_cpu_affinity`", "gpu_affinity_file"
    ),
    "NRL_USE_FASTOKENS": _supported("passed on"),
    "NRL_JOB_START_EPOCH": RaySubVariable(Support.SET, "Muster sets it for the driver: the start of the job"),
    "NRL_RAY_READY_EPOCH": RaySubVariable(Support.SET, "Muster sets it for the driver: when all Ray nodes were alive"),
    "SLURM_MASTER_NODE": RaySubVariable(Support.SET, "Muster sets it for the driver: the host of the head"),
    # -- ports
    "PORT": _PORT,
    "RAY_CLIENT_SERVER_PORT": _PORT,
    "NODE_MANAGER_PORT": _PORT,
    "OBJECT_MANAGER_PORT": _PORT,
    "RUNTIME_ENV_AGENT_PORT": _PORT,
    "DASHBOARD_AGENT_GRPC_PORT": _PORT,
    "METRICS_EXPORT_PORT": _PORT,
    "DASHBOARD_AGENT_LISTEN_PORT": _PORT,
    "DASHBOARD_PORT": _PORT,
    "MIN_WORKER_PORT": _PORT,
    "MAX_WORKER_PORT": _PORT,
    # -- the script itself
    "RAY_LOG_SYNC_FREQUENCY": _reported("Ray's logs are collected at the end, in one archive per node; see --ray-logs"),
    "RAY_SUB_DEBUG_ENV": _reported(
        "Muster does not print the environment; `muster exec RUN -- env` prints that of a node"
    ),
    "WORKER_NUM_RETRIES": _reported("Muster tries to start each Ray node three times, with fresh state"),
    # -- sandboxes
    "SANDBOX_CONTAINER": _supported("with `SANDBOX_COMMAND`: Muster's sandbox on every node, in the job's image"),
    "SANDBOX_COMMAND": _supported("with `SANDBOX_CONTAINER`: Muster's sandbox on every node, for the same clients"),
    "NEMO_SKILLS_SANDBOX_PORT": _supported("the port of the sandbox on every node; default 6000"),
    "SANDBOX_EXTRA_MOUNTS": _reported(
        "list paths that programs may read in `settings: {read_only: [...]}` of the service"
    ),
    "SANDBOX_ENV_VARS": _reported("set variables for programs in `settings: {env: {...}}` of the service"),
    "SANDBOX_BASE_PORT": _reported("the workers of Muster's sandbox have no ports"),
    "SANDBOX_WORKER_BASE_PORT": _reported("the workers of Muster's sandbox have no ports"),
    "SANDBOX_PORTS_DIR": _reported("clients find Muster's sandbox at its fixed port"),
    "NGINX_PORT": _reported("Muster's sandbox needs no nginx; use NEMO_SKILLS_SANDBOX_PORT"),
}
"""All variables that ray.sub reads, or sets for the driver and the sandbox."""
