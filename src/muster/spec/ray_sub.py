"""Translate the variables of NeMo-RL's ray.sub into the job's fields, with notes on those without effect. Pure.

`ray_sub_variables` lists all variables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.spec import validators
from muster.spec.flags import long_flag
from muster.spec.ray_sub_variables import RAY_SUB_VARIABLES, Support

# ray.sub mounts its uv cache here inside the container.
_UV_CACHE = "/root/.cache/uv"

_SANDBOX_PAIR = ("SANDBOX_CONTAINER", "SANDBOX_COMMAND")  # ray.sub starts sandboxes if both are set
_SANDBOX_PORT = "NEMO_SKILLS_SANDBOX_PORT"
_DEFAULT_SANDBOX_PORT = "6000"  # the default of NeMo-Skills' clients

_DEFAULT_ENV = {
    "OMP_NUM_THREADS": "16",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # Ray's handling of `uv run` would create an environment per task
}
_DEFAULTS = {
    # ray.sub waits so long for its workers, set-up and the start of the container included.
    "gather_timeout": "30m",
    "start_timeout": "30m",
    # MPI_Init in a Ray worker, as in TensorRT-LLM, would otherwise take itself for a task of the job step.
    "ray_unset": "MPI_*,OMPI_*,PMI_*,PMIX_*,SLURM_*",
    "gpu_affinity_file": "/tmp/nrl_gpu_cpu_affinity",
}
_REPLACED_BY = {"gpus_per_node": "gres"}  # a flag that excludes the field


@dataclass
class RaySubJob:
    """The job that the variables describe."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields that the variables set: flags win over them, field by field or entry by entry."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Fields that ray.sub sets without a variable: settings, job file and flags win over them."""
    notes: list[str] = field(default_factory=list)
    """One line per variable without effect, for users."""


def ray_sub_job(env: Mapping[str, str], flags: Collection[str] = ()) -> RaySubJob:
    """Return the job that ray.sub would run with these variables; empty ones count as unset, as in ray.sub.

    `flags` are the fields given as flags; they win, so the result does not have them.
    """
    given = {name: value for name, value in env.items() if value.strip()}
    named = {name: variable.field for name, variable in RAY_SUB_VARIABLES.items() if name in given}
    fields: dict[str, Any] = {field: given[name] for name, field in named.items() if field is not None}
    fields |= {"exclusive": "true", **_mounts(given), **_setup(given)}
    if "CONTAINER" in given:
        fields["container_args"] = "--no-container-mount-home"  # other runtimes, too: see containers.discover
    if given.get("DEDICATED_RAY_HEAD") == "1":
        fields["dedicated_head_cpus"] = "true"
    if given.get("RAY_DEBUG") == "legacy":
        fields["ray_start_arg"] = ["--ray-debugger-external"]
    if _has_sandbox(given):
        port = given.get(_SANDBOX_PORT, _DEFAULT_SANDBOX_PORT)
        fields["services"] = {"sandbox": {"kind": "sandbox", "ports": {"http": port}}}
        fields["env"] = {_SANDBOX_PORT: port}
    left = {name: value for name, value in fields.items() if name not in flags and _REPLACED_BY.get(name) not in flags}
    kept = {name: value for name, value in fields.items() if name in ("env", "ray_start_arg")}  # flags add to these
    defaults: dict[str, Any] = {name: value for name, value in _DEFAULTS.items() if name not in {*fields, *flags}}
    defaults["env"] = {name: value for name, value in _DEFAULT_ENV.items() if name not in given}
    notes = _notes(given)
    if not {"gpus_per_node", "gres"} & {*left, *flags}:
        notes.append("GPUS_PER_NODE is not set (ray.sub: 8), so no GPUs are requested; use --gpus-per-node or --gres")
    return RaySubJob({**left, **kept}, defaults, notes)


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
    notes = [
        f"{name} has no effect: {variable.text}"
        for name, variable in RAY_SUB_VARIABLES.items()
        if name in given and variable.support is not Support.SUPPORTED and not name.startswith("SANDBOX_")
    ]
    dedicated = given.get("DEDICATED_RAY_HEAD", "0")
    if dedicated not in ("0", "1"):
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
    return notes + [f"{name} has no effect: {_sandbox_text(name)}" for name in others]


def _sandbox_text(name: str) -> str:
    return RAY_SUB_VARIABLES[name].text if name in RAY_SUB_VARIABLES else "Muster's sandbox has no such setting"


def as_arguments(job: RaySubJob) -> list[str]:
    """Return the job as arguments of `muster run`, COMMAND last."""
    fields = {**job.defaults, **job.fields}
    fields["env"] = {**job.defaults.get("env", {}), **job.fields.get("env", {})}
    words: list[str] = []
    for name, value in fields.items():
        if name == "env":
            words += [f"--env={key}={text}" for key, text in value.items()]
        elif name == "ray_start_arg":
            words += [f"{long_flag(name)}={text}" for text in value]
        elif name in ("exclusive", "dedicated_head_cpus"):
            words.append(long_flag(name))
        elif name not in ("command", "services"):  # services have no flag: a note shows them
            words.append(f"{long_flag(name)}={value}")
    command = validators.command_words(fields.get("command", []))
    return [*words, "--", *command] if isinstance(command, list) else words


NO_COMMAND = (
    "COMMAND is not set, and there is no command after --. ray.sub would start an idle cluster: use `muster up` with "
    "the same options"
)
