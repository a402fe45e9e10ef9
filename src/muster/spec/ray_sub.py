"""Translate the variables of NeMo-RL's ray.sub into the job's fields, with notes on those without effect. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.spec import validators
from muster.spec.flags import long_flag

# ray.sub mounts its uv cache here inside the container.
_UV_CACHE = "/root/.cache/uv"

_PORTS = "Muster uses a free block of ports on every node; to fix it, use --port-base"
_SANDBOX_PAIR = ("SANDBOX_CONTAINER", "SANDBOX_COMMAND")  # ray.sub starts sandboxes if both are set
_SANDBOX_PORT = "NEMO_SKILLS_SANDBOX_PORT"
_DEFAULT_SANDBOX_PORT = "6000"  # the default of NeMo-Skills' clients

UNNEEDED = {
    **dict.fromkeys(
        [
            "PORT",
            "NODE_MANAGER_PORT",
            "OBJECT_MANAGER_PORT",
            "RUNTIME_ENV_AGENT_PORT",
            "DASHBOARD_AGENT_GRPC_PORT",
            "DASHBOARD_AGENT_LISTEN_PORT",
            "METRICS_EXPORT_PORT",
            "RAY_CLIENT_SERVER_PORT",
            "DASHBOARD_PORT",
            "MIN_WORKER_PORT",
            "MAX_WORKER_PORT",
        ],
        _PORTS,
    ),
    "RAY_LOG_SYNC_FREQUENCY": "Ray's logs are collected at the end, in one archive per node; see --ray-logs",
    "RAY_SUB_DEBUG_ENV": "Muster does not print the environment; `muster exec RUN -- env` prints that of a node",
    "NRL_GPU_CPU_AFFINITY_FILE": "Muster does not write that file, so NeMo-RL does not bind its workers to CPUs; "
    "write it with --setup",
    "WORKER_NUM_RETRIES": "Muster tries to start each Ray node three times, with fresh state",
}
"""Variables without a field, each with the reason or the replacement; those of a sandbox are below."""

UNUSED_BY_SANDBOX = {
    "SANDBOX_EXTRA_MOUNTS": "list paths that programs may read in `settings: {read_only: [...]}` of the service",
    "SANDBOX_ENV_VARS": "set variables for programs in `settings: {env: {...}}` of the service",
    "SANDBOX_BASE_PORT": "the workers of Muster's sandbox have no ports",
}
"""Variables of ray.sub's sandbox that have no effect, each with the replacement in a job file."""

_REPLACED_BY = {"gpus_per_node": "gres"}  # a flag that excludes the field


@dataclass
class RaySubJob:
    """The job that the variables describe."""

    fields: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """One line per variable without effect, for users."""


def ray_sub_job(env: Mapping[str, str], flags: Collection[str] = ()) -> RaySubJob:
    """Return the job that ray.sub would run with these variables; empty ones count as unset, as in ray.sub.

    `flags` are the fields given as flags; they win, so the result does not have them.
    """
    given = {name: value for name, value in env.items() if value.strip()}
    names = {
        "COMMAND": "command",  # text for bash, as in ray.sub
        "CONTAINER": "container_image",
        "GPUS_PER_NODE": "gpus_per_node",
        "CPUS_PER_WORKER": "cpus_per_node",
        "BASE_LOG_DIR": "runs_dir",
    }
    fields: dict[str, Any] = {field: given[name] for name, field in names.items() if name in given}
    # Ray's handling of `uv run` would create an environment per task.
    fields["env"] = {} if "RAY_ENABLE_UV_RUN_RUNTIME_ENV" in given else {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    fields["exclusive"] = "true"
    fields |= _mounts(given) | _setup(given)
    if "CONTAINER" in given:
        fields["container_args"] = "--no-container-mount-home"  # other runtimes, too: see containers.discover
    if given.get("DEDICATED_RAY_HEAD") == "1":
        fields["dedicated_head"] = "true"
    if _has_sandbox(given):
        port = given.get(_SANDBOX_PORT, _DEFAULT_SANDBOX_PORT)
        fields["services"] = {"sandbox": {"kind": "sandbox", "ports": {"http": port}}}
        fields["env"][_SANDBOX_PORT] = port
    left = {name: value for name, value in fields.items() if name not in flags and _REPLACED_BY.get(name) not in flags}
    notes = _notes(given)
    if not {"gpus_per_node", "gres"} & {*left, *flags}:
        notes.append("GPUS_PER_NODE is not set (ray.sub: 8), so no GPUs are requested; use --gpus-per-node or --gres")
    return RaySubJob({**left, "env": fields["env"]}, notes)


def _mounts(given: Mapping[str, str]) -> dict[str, str]:
    cache = f"{given['UV_CACHE_DIR_OVERRIDE']}:{_UV_CACHE}" if "UV_CACHE_DIR_OVERRIDE" in given else ""
    mounts = ",".join(filter(None, [given.get("MOUNTS"), cache]))
    return {"container_mounts": mounts} if mounts else {}


def _setup(given: Mapping[str, str]) -> dict[str, str]:
    """Return the setup code; a cache directory of the submitting host does not exist in the container."""
    lines = ["unset UV_CACHE_DIR"] if "UV_CACHE_DIR" in given and "CONTAINER" in given else []
    lines += [given["SETUP_COMMAND"]] if "SETUP_COMMAND" in given else []
    return {"setup": "\n".join(lines)} if lines else {}


def _notes(given: Mapping[str, str]) -> list[str]:
    notes = [f"{name} has no effect: {UNNEEDED[name]}" for name in UNNEEDED if name in given]
    if given.get("RAY_DEBUG") == "legacy":
        notes.append(
            "RAY_DEBUG has no effect on the cluster: `legacy` does not add --ray-debugger-external to `ray start`"
        )
    dedicated = given.get("DEDICATED_RAY_HEAD", "0")
    if dedicated == "1":
        notes.append("DEDICATED_RAY_HEAD becomes --dedicated-head: Ray uses neither GPUs nor CPUs of the head")
    elif dedicated != "0":
        notes.append(f"DEDICATED_RAY_HEAD={dedicated} has no effect; only 1 reserves the head")
    return notes + _sandbox_notes(given)


def _has_sandbox(given: Mapping[str, str]) -> bool:
    return all(name in given for name in _SANDBOX_PAIR)


def _sandbox_notes(given: Mapping[str, str]) -> list[str]:
    if not _has_sandbox(given):
        pair = " and ".join(_SANDBOX_PAIR)
        names = [name for name in sorted(given) if name.startswith("SANDBOX_")]
        notes = [f"{name} has no effect: a sandbox is started only if {pair} are both set" for name in names]
        if _SANDBOX_PORT in given:
            notes.append(f"{_SANDBOX_PORT} is set for the job, but starts no sandbox: {pair} are not both set")
        return notes
    port = given.get(_SANDBOX_PORT, _DEFAULT_SANDBOX_PORT)
    notes = [
        f"{' and '.join(_SANDBOX_PAIR)} become Muster's sandbox, for the same clients. It runs in the job's image, "
        "which must contain the modules that programs import. In a job file: "
        f"services: {{sandbox: {{kind: sandbox, ports: {{http: {port}}}}}}}"
    ]
    others = [name for name in sorted(given) if name.startswith("SANDBOX_") and name not in _SANDBOX_PAIR]
    unknown = "Muster's sandbox has no such setting"
    return notes + [f"{name} has no effect: {UNUSED_BY_SANDBOX.get(name, unknown)}" for name in others]


def as_arguments(fields: Mapping[str, Any]) -> list[str]:
    """Return the fields as arguments of `muster run`, COMMAND last."""
    words: list[str] = []
    for name, value in fields.items():
        if name == "env":
            words += [f"--env={key}={text}" for key, text in value.items()]
        elif name in ("exclusive", "dedicated_head"):
            words.append(long_flag(name))
        elif name not in ("command", "services"):  # services have no flag: a note shows them
            words.append(f"{long_flag(name)}={value}")
    command = validators.command_words(fields.get("command", []))
    return [*words, "--", *command] if isinstance(command, list) else words


NO_COMMAND = (
    "COMMAND is not set, and there is no command after --. ray.sub would start an idle cluster: use `muster up` with "
    "the same options"
)
