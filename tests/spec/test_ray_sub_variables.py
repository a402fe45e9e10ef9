"""The table of ray.sub's variables is complete, and --from-env does what it says."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from muster.spec import ray_sub
from muster.spec.ray_sub import ray_sub_job
from muster.spec.ray_sub_variables import RAY_SUB_VARIABLES, Support

SANDBOX = {"SANDBOX_CONTAINER": "registry#sandbox:1", "SANDBOX_COMMAND": "/start-with-nginx.sh"}

# All variables that ray.sub reads, or sets for the driver and the sandbox, in August 2026; and one of older versions.
VARIABLES_OF_RAY_SUB = """
COMMAND CONTAINER MOUNTS SETUP_COMMAND BASE_LOG_DIR GPUS_PER_NODE CPUS_PER_WORKER DEDICATED_RAY_HEAD OMP_NUM_THREADS
PORT RAY_CLIENT_SERVER_PORT NODE_MANAGER_PORT OBJECT_MANAGER_PORT RUNTIME_ENV_AGENT_PORT DASHBOARD_AGENT_GRPC_PORT
METRICS_EXPORT_PORT DASHBOARD_AGENT_LISTEN_PORT DASHBOARD_PORT MIN_WORKER_PORT MAX_WORKER_PORT RAY_DEBUG
RAY_ENABLE_UV_RUN_RUNTIME_ENV UV_CACHE_DIR UV_CACHE_DIR_OVERRIDE RAY_LOG_SYNC_FREQUENCY RAY_SUB_DEBUG_ENV
NRL_JOB_START_EPOCH NRL_RAY_READY_EPOCH NRL_GPU_CPU_AFFINITY_FILE NRL_USE_FASTOKENS SLURM_MASTER_NODE
SANDBOX_CONTAINER SANDBOX_COMMAND SANDBOX_EXTRA_MOUNTS SANDBOX_ENV_VARS NEMO_SKILLS_SANDBOX_PORT SANDBOX_BASE_PORT
SANDBOX_PORTS_DIR SANDBOX_WORKER_BASE_PORT NGINX_PORT
WORKER_NUM_RETRIES
"""
PASSED_ON = {"NRL_USE_FASTOKENS"}  # by the environment of the submission, without any field
VALUES = {
    "DEDICATED_RAY_HEAD": "1",
    "RAY_DEBUG": "legacy",
    "NRL_GPU_CPU_AFFINITY_FILE": "/tmp/mine",
    "NEMO_SKILLS_SANDBOX_PORT": "6100",
}


def test_the_table_has_every_variable_of_ray_sub_and_no_other() -> None:
    assert set(RAY_SUB_VARIABLES) == set(VARIABLES_OF_RAY_SUB.split())
    tree = ast.parse(inspect.getsource(ray_sub))
    used = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {name for name in used if re.fullmatch(r"[A-Z]+(_[A-Z]+)*", name)}
    assert len(names) > 10 and names <= set(RAY_SUB_VARIABLES)


@pytest.mark.parametrize("name", RAY_SUB_VARIABLES)
def test_a_variable_has_the_effect_that_the_table_says_or_is_reported(name: str) -> None:
    base = {"CONTAINER": "i", **SANDBOX} if name != "CONTAINER" else SANDBOX
    without = {key: value for key, value in base.items() if key != name}
    found, other = (ray_sub_job(given) for given in ({**without, name: VALUES.get(name, "7")}, without))
    reported = any(note.startswith(f"{name} has no effect: ") for note in found.notes)
    changed = (found.fields, found.defaults) != (other.fields, other.defaults)
    if RAY_SUB_VARIABLES[name].support is Support.SUPPORTED:
        assert not reported and changed == (name not in PASSED_ON)
    else:
        assert reported and not changed


def test_ray_s_processes_lack_only_a_variable_that_the_driver_has() -> None:
    removed = ray_sub_job({}).defaults["ray_unset"].replace("*", "").split(",")
    names = {name for name in RAY_SUB_VARIABLES if name.startswith(tuple(removed))}
    assert names == {"SLURM_MASTER_NODE"}
