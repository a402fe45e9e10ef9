"""The page of environment variables. The tables are checked against all names in the sources, in both directions."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.reference.markdown import code, heading, table

from muster.spec.model import FLAGS

SOURCES = Path(__file__).parents[3] / "src" / "muster"

# Set for the driver, the ranks of a gang, services, Ray's processes and sessions.
FOR_THE_JOB = {
    "MUSTER_RUN_ID": "The run id, the same in all requeues and cycles: use it for checkpoints and experiment ids.",
    "MUSTER_OUTPUT_DIR": "A directory of the run, shared by all attempts and nodes, for results and checkpoints.",
    "MUSTER_ATTEMPT": "The number of earlier starts of the Slurm job.",
    "MUSTER_CYCLE": "The number of restarts by Muster within the job.",
    "MUSTER_RESUME": "`1` if the driver was started before, in an attempt or a cycle, else `0`.",
    "MUSTER_RESTART_REASON": "In a later cycle: why the previous one ended.",
    "MUSTER_BEAT_FILE": "A file to touch as a sign of progress, as `muster.beat()` does.",
    "MUSTER_CONTROL_DIR": "A directory of the node for [requests of programs](../how-to/control-requests.md).",
    "MUSTER_BAD_NODE": "For `--on-bad-node`: the node.",
    "MUSTER_BAD_NODE_REASON": "For `--on-bad-node`: the reason.",
    "MUSTER_GROUP": "The name of the node's group, in jobs with `groups`.",
    "MUSTER_SERVICES_DIR": "A directory with `<service>.json`, kept up to date: the endpoints of each service.",
    "MUSTER_SERVICE_<NAME>": "The endpoint of a service: that of the same node, else the first.",
    "MUSTER_SERVICE_<NAME>_URLS": "All endpoints of a service, separated by commas.",
    "MUSTER_SERVICE_<NAME>_URLS_FILE": "A file with one endpoint per line, if there are too many for a variable.",
    "MUSTER_ENDPOINT_<NAME>": "The URL of the [endpoint](../how-to/endpoints.md) of a service, or of placed replicas.",
    "MUSTER_ENDPOINT_TOKEN": "The token of the run's endpoints: the API key of a client.",
    "MUSTER_OWNER": "The tag of the scope that owns the process. Do not set or remove it.",
}
FOR_SERVICES = {
    "MUSTER_PORT_<NAME>": "The port with this name.",
    "MUSTER_SERVICE_DIR": "A directory of the instance, new at each start.",
}
# Read by Muster: on the submitting host, or set by `--setup` on a node.
FOR_USERS = {
    "MUSTER_<FIELD>": "Any field of the [job file](job-file.md) but `command` and `name`, such as `MUSTER_TIME`.",
    "MUSTER_PROFILE": "The profile to use, as `--profile`.",
    "MUSTER_SITE_CONFIG": "The site's settings file. Default: `/etc/muster/config.yaml`.",
    "MUSTER_RUNS_DIR": "The directory of run directories, as `--runs-dir`.",
    "MUSTER_DOMAIN": "Exported by `--setup`: the node's topology domain, such as its rack.",
    "MUSTER_TOPOLOGY": "Exported by `--setup`: the node's address in the network, such as `row2.rack7.n17`.",
    "MUSTER_TORCH_TOKEN": "The secret of `muster torchrun`, if no token file is given.",
    "MUSTER_LAB_DIR": "The directory of a lab. Default: `/run/muster-lab`.",
    "MUSTER_LAB_SHARED": "Set by `muster lab env`: a directory that all nodes of the lab share.",
    "MUSTER_SLURM_DIR": "Where `muster lab up --slurm` keeps releases of Slurm. Default: `/var/cache/muster/slurm`.",
    "MUSTER_DEBIAN_MIRROR": "The mirror for these releases. Default: that of apt's configuration.",
}
# Between the job script, the launcher and the agent; they do not reach the job's processes.
INTERNAL = {
    "MUSTER_BACKEND": "`slurm` or `local`.",
    "MUSTER_JOB_START": "The time at which the job script started.",
    "MUSTER_STEP_NODES": "The number of nodes, spares included, that Slurm has allocated to a job with `--min-nodes`.",
    "MUSTER_RANK": "The node's index.",
    "MUSTER_HOST": "The node's host name.",
    "MUSTER_TASK": "The node's index, from the local launcher.",
    "MUSTER_NODE": "The node's host name, from the local launcher.",
    "MUSTER_KEEPER": "The tag of the scope that a supervisor owns.",
    "MUSTER_SESSION_COMMAND": "The command of a session (`muster attach`, `exec`).",
    "MUSTER_DOCTOR_SETUP": "The exit code of `--setup` in a probe of `muster doctor`.",
    "MUSTER_NO_TASK": "Never set: the doctor's probe reads it outside a Slurm step.",
    "MUSTER_NO_NODE": "Never set: the doctor's probe reads it outside a Slurm step.",
}
FOR_DRIVERS = {
    "RAY_ADDRESS": "The address of the Ray cluster: `ray.init()` needs no argument.",
    "RAY_AUTH_MODE": "`token`, with Ray 2.52 and newer.",
    "RAY_AUTH_TOKEN_PATH": "The file with the run's token for Ray.",
    "RAY_USAGE_STATS_ENABLED": "`0` unless you set it.",
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "`false`: Muster stops these.",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "Time to reconnect to a restarted control service.",
    "RAY_raylet_client_connect_timeout_milliseconds": "Tuning for slow nodes; `--env` overrides it.",
    "RAY_raylet_client_num_connect_attempts": "Tuning for slow nodes; `--env` overrides it.",
    "RAY_worker_register_timeout_seconds": "Tuning for slow filesystems; `--env` overrides it.",
    "NRL_JOB_START_EPOCH": "For NeMo-RL: the start of the job, in seconds since the epoch.",
    "NRL_RAY_READY_EPOCH": "For NeMo-RL: when all Ray nodes were alive.",
    "SLURM_MASTER_NODE": "For NeMo-RL, in Slurm jobs: the host of the head.",
    "OMP_NUM_THREADS": "The node's CPUs, divided by the processes of a gang, unless you set it.",
}
FOR_RANKS = {
    "RANK": "The rank of the process, from 0; rank 0 is on the leader.",
    "WORLD_SIZE": "The number of processes.",
    "LOCAL_RANK": "The rank of the process on its node.",
    "LOCAL_WORLD_SIZE": "The number of processes on the node.",
    "GROUP_RANK": "The rank of the node.",
    "GROUP_WORLD_SIZE": "The number of nodes.",
    "ROLE_NAME": "`default`.",
    "ROLE_RANK": "As `RANK`.",
    "ROLE_WORLD_SIZE": "As `WORLD_SIZE`.",
    "MASTER_ADDR": "An address of rank 0's node that the other nodes reach.",
    "MASTER_PORT": "A free port on rank 0's node, another one in each cycle.",
    "TORCHELASTIC_RUN_ID": "The run id.",
    "TORCHELASTIC_RESTART_COUNT": "The cycle.",
    "TORCHELASTIC_MAX_RESTARTS": "The value of `--max-restarts`.",
    "TORCHELASTIC_USE_AGENT_STORE": "`False`.",
    "JAX_COORDINATOR_ADDRESS": "`MASTER_ADDR:MASTER_PORT`, for JAX.",
    "JAX_NUM_PROCESSES": "As `WORLD_SIZE`.",
    "JAX_PROCESS_ID": "As `RANK`.",
}
MUSTER_VARIABLES = {**FOR_THE_JOB, **FOR_SERVICES, **FOR_USERS, **INTERNAL}
PATTERNS = {  # variables whose names have a variable part, and how sources write them
    "MUSTER_SERVICE_<NAME>": "MUSTER_SERVICE_",
    "MUSTER_SERVICE_<NAME>_URLS": "MUSTER_SERVICE_",
    "MUSTER_SERVICE_<NAME>_URLS_FILE": "MUSTER_SERVICE_",
    "MUSTER_PORT_<NAME>": "MUSTER_PORT_",
    "MUSTER_ENDPOINT_<NAME>": "MUSTER_ENDPOINT_",
    "MUSTER_<FIELD>": "MUSTER_",
}


def names_in_sources() -> set[str]:
    """Return every name that begins with MUSTER_ in code and templates, without examples in texts."""
    files = [path for path in SOURCES.rglob("*") if path.suffix in (".py", ".sh") and path.is_file()]
    names = {name for path in files for name in re.findall(r"\bMUSTER_[A-Z_]*", path.read_text(encoding="utf-8"))}
    fields = {f"MUSTER_{field.upper()}" for field in FLAGS}
    examples = {name for name in names if name.startswith("MUSTER_SERVICE_") and name not in MUSTER_VARIABLES}
    return (names - examples - (fields - MUSTER_VARIABLES.keys())) | ({"MUSTER_SERVICE_"} & names)


def _table(variables: dict[str, str]) -> str:
    return table(("variable", "meaning"), [[code(name), meaning] for name, meaning in variables.items()])


def page() -> str:
    """Return the text of the page."""
    step = (
        "Variables of the agent's Slurm step (`SLURM_STEP_*`, `SLURM_PROCID`, `PMI_*` and others) are removed; those "
        "of the job (`SLURM_JOB_ID`, `SLURM_JOB_NODELIST` and others) are kept. `PYTHONUNBUFFERED` and "
        "`PYTHONFAULTHANDLER` are set."
    )
    sections = {
        "Set for processes of the job": f"{_table(FOR_THE_JOB)}\n\n{step}",
        "Also set for the driver": _table(FOR_DRIVERS),
        "Also set for the ranks of a gang": _table(FOR_RANKS),
        "Also set for services": _table(FOR_SERVICES),
        "Read by Muster": _table(FOR_USERS),
        "Internal": f"These connect the job script, the launcher and the agent.\n\n{_table(INTERNAL)}",
    }
    return "\n".join([heading("Environment variables"), *(f"## {title}\n\n{one}\n" for title, one in sections.items())])
