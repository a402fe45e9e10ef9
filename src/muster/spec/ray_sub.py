"""From the variables of NeMo-RL's ray.sub to a job: what each becomes, and what to know of those that become nothing.

Pure: a mapping of variables in, the job's fields and notes for people out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.spec import values
from muster.spec.flags import long_flag

# Where ray.sub mounts its cache of uv inside the container.
_UV_CACHE = "/root/.cache/uv"

_PORTS = "Muster takes a free block of ports on every node; to pin it, use --port-base"
_SANDBOX = "Muster does not start sandboxes yet; start them from COMMAND, or keep ray.sub for this job"

UNNEEDED = {
    **dict.fromkeys(
        [
            "PORT", "NODE_MANAGER_PORT", "OBJECT_MANAGER_PORT", "RUNTIME_ENV_AGENT_PORT", "DASHBOARD_AGENT_GRPC_PORT",
            "DASHBOARD_AGENT_LISTEN_PORT", "METRICS_EXPORT_PORT", "RAY_CLIENT_SERVER_PORT", "DASHBOARD_PORT",
            "MIN_WORKER_PORT", "MAX_WORKER_PORT",
        ],
        _PORTS,
    ),
    "RAY_LOG_SYNC_FREQUENCY": "Ray's logs are kept at the end, in one archive for each node; see --ray-logs",
    "WORKER_NUM_RETRIES": "a Ray node that does not start is tried three times, with fresh state",
}  # fmt: skip
"""Variables without a field of their own, each with why, or what to use instead; SANDBOX_* besides."""

_YIELDS = {"gpus_per_node": "gres", "container_args": "container_runtime"}  # to a flag that does not go with it


@dataclass
class FromEnvironment:
    """What the variables say."""

    fields: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """One line for each variable that changes nothing, fit to show as it is."""


def job_of(env: Mapping[str, str], flags: Collection[str] = ()) -> FromEnvironment:
    """The job that ray.sub would have run with these variables; empty ones count as not set, as there.

    `flags` are the fields that were given besides: they win, so what they replace is left out.
    """
    given = {name: value for name, value in env.items() if value.strip()}
    names = {
        "COMMAND": "command",  # a text: for bash, as there
        "CONTAINER": "container_image",
        "GPUS_PER_NODE": "gpus_per_node",
        "CPUS_PER_WORKER": "cpus_per_node",
        "BASE_LOG_DIR": "runs_dir",
    }
    fields: dict[str, Any] = {field: given[name] for name, field in names.items() if name in given}
    # Ray's own handling of `uv run` would make an environment for each task.
    fields["env"] = {} if "RAY_ENABLE_UV_RUN_RUNTIME_ENV" in given else {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    fields["exclusive"] = "true"
    fields |= _mounts(given) | _setup(given)
    if "CONTAINER" in given:
        fields["container_args"] = "--no-container-mount-home"
    left = {name: value for name, value in fields.items() if name not in flags and _YIELDS.get(name) not in flags}
    notes = _notes(given)
    if not {"gpus_per_node", "gres"} & {*left, *flags}:
        notes.append("GPUS_PER_NODE is not set (ray.sub: 8), so no GPUs are asked for; --gpus-per-node or --gres does")
    return FromEnvironment({**left, "env": fields["env"]}, notes)


def _mounts(given: Mapping[str, str]) -> dict[str, str]:
    cache = f"{given['UV_CACHE_DIR_OVERRIDE']}:{_UV_CACHE}" if "UV_CACHE_DIR_OVERRIDE" in given else ""
    mounts = ",".join(filter(None, [given.get("MOUNTS"), cache]))
    return {"container_mounts": mounts} if mounts else {}


def _setup(given: Mapping[str, str]) -> dict[str, str]:
    """A cache directory of the submitting host is not the container's."""
    lines = ["unset UV_CACHE_DIR"] if "UV_CACHE_DIR" in given and "CONTAINER" in given else []
    lines += [given["SETUP_COMMAND"]] if "SETUP_COMMAND" in given else []
    return {"setup": "\n".join(lines)} if lines else {}


def _notes(given: Mapping[str, str]) -> list[str]:
    notes = [f"{name} has no effect: {UNNEEDED[name]}" for name in UNNEEDED if name in given]
    notes += [f"{name} has no effect: {_SANDBOX}" for name in sorted(given) if name.startswith("SANDBOX_")]
    return notes


def as_words(fields: Mapping[str, Any]) -> list[str]:
    """The same as flags of `muster run`, COMMAND last."""
    words: list[str] = []
    for name, value in fields.items():
        if name == "env":
            words += [f"--env={key}={text}" for key, text in value.items()]
        elif name == "exclusive":
            words.append("--exclusive")
        elif name != "command":
            words.append(f"{long_flag(name)}={value}")
    command = values.command_words(fields.get("command", []))
    return [*words, "--", *command] if isinstance(command, list) else words


NO_COMMAND = (
    "COMMAND is not set, and none is given after --. ray.sub would bring up an idle cluster: that is `muster up`, "
    "with the same options"
)
