"""From the variables of NeMo-RL's ray.sub to a job: what each becomes, and what to know of those that become nothing.

Pure: a mapping of variables in, the job's fields and notes for people out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.spec import validators
from muster.spec.flags import long_flag

# Where ray.sub mounts its cache of uv inside the container.
_UV_CACHE = "/root/.cache/uv"

_PORTS = "Muster takes a free block of ports on every node; to pin it, use --port-base"
_SANDBOX_PAIR = ("SANDBOX_CONTAINER", "SANDBOX_COMMAND")  # ray.sub starts sandboxes where both are set
_SANDBOX_PORT = "NEMO_SKILLS_SANDBOX_PORT"
_USUAL_SANDBOX_PORT = "6000"  # where NeMo-Skills' clients look if nothing else is said

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
    "RAY_LOG_SYNC_FREQUENCY": "Ray's logs are kept at the end, in one archive for each node; see --ray-logs",
    "RAY_SUB_DEBUG_ENV": "no environment is printed; `muster exec RUN -- env` prints that of a node",
    "NRL_GPU_CPU_AFFINITY_FILE": "Muster does not write that file, so NeMo-RL does not bind its workers to CPUs; "
    "write it with --setup",
    "WORKER_NUM_RETRIES": "a Ray node that does not start is tried three times, with fresh state",
}
"""Variables without a field of their own, each with why, or what to use instead; those of a sandbox besides."""

UNUSED_BY_SANDBOX = {
    "SANDBOX_EXTRA_MOUNTS": "name places that programs may read in `settings: {read_only: [...]}` of the service",
    "SANDBOX_ENV_VARS": "name variables that programs get in `settings: {env: {...}}` of the service",
    "SANDBOX_BASE_PORT": "the workers of Muster's sandbox have no ports",
}
"""Variables of ray.sub's sandbox that Muster's takes otherwise; a service can be given settings in a job file."""

_YIELDS = {"gpus_per_node": "gres"}  # to a flag that does not go with it


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
        fields["container_args"] = "--no-container-mount-home"  # also where pyxis is not: see container_here
    if given.get("DEDICATED_RAY_HEAD") == "1":
        fields["dedicated_head"] = "true"
    if _has_sandbox(given):
        port = given.get(_SANDBOX_PORT, _USUAL_SANDBOX_PORT)
        fields["services"] = {"sandbox": {"kind": "sandbox", "ports": {"http": port}}}
        fields["env"][_SANDBOX_PORT] = port
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
    if given.get("RAY_DEBUG") == "legacy":
        notes.append("RAY_DEBUG has no effect on the cluster: `ray start` gets no --ray-debugger-external for `legacy`")
    dedicated = given.get("DEDICATED_RAY_HEAD", "0")
    if dedicated == "1":
        notes.append("DEDICATED_RAY_HEAD becomes --dedicated-head: Ray gets no GPUs of the head, and no CPUs either")
    elif dedicated != "0":
        notes.append(f"DEDICATED_RAY_HEAD={dedicated} has no effect: 1 asks for a head without work")
    return notes + _sandbox_notes(given)


def _has_sandbox(given: Mapping[str, str]) -> bool:
    return all(name in given for name in _SANDBOX_PAIR)


def _sandbox_notes(given: Mapping[str, str]) -> list[str]:
    if not _has_sandbox(given):
        pair = " and ".join(_SANDBOX_PAIR)
        of_sandbox = [name for name in sorted(given) if name.startswith("SANDBOX_")]
        notes = [f"{name} has no effect: a sandbox is started where {pair} are both set" for name in of_sandbox]
        if _SANDBOX_PORT in given:
            notes.append(f"{_SANDBOX_PORT} is passed on, but starts no sandbox: {pair} are not both set")
        return notes
    port = given.get(_SANDBOX_PORT, _USUAL_SANDBOX_PORT)
    notes = [
        f"{' and '.join(_SANDBOX_PAIR)} become Muster's own sandbox, for the same clients. It runs in the job's image, "
        "not in theirs: what programs import must be there. In a job file it is "
        f"services: {{sandbox: {{kind: sandbox, ports: {{http: {port}}}}}}}"
    ]
    others = [name for name in sorted(given) if name.startswith("SANDBOX_") and name not in _SANDBOX_PAIR]
    unknown = "Muster's sandbox does not know it"
    return notes + [f"{name} has no effect: {UNUSED_BY_SANDBOX.get(name, unknown)}" for name in others]


def as_words(fields: Mapping[str, Any]) -> list[str]:
    """The same as flags of `muster run`, COMMAND last."""
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
    "COMMAND is not set, and none is given after --. ray.sub would bring up an idle cluster: that is `muster up`, "
    "with the same options"
)
