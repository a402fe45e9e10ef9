"""From a job file and flags to one `JobSpec`; all problems are told at once, each with its origin."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.spec.errors import SpecError, explain
from muster.spec.flags import long_flag, spellings
from muster.spec.model import FLAGS, JobSpec
from muster.spec.passthrough import settle
from muster.spec.sbatch_options import option_name
from muster.spec.yaml_file import read_job_file

_KEYED = ("env", "sbatch")
"""Fields that hold entries: a flag adds to them or replaces one, instead of replacing all."""


@dataclass
class Source:
    """What one place (the file, or the command line) says about the job."""

    values: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)
    """Where each field, and each `field.key`, was written: "--nodes", "job.yaml: nodes"."""
    problems: list[str] = field(default_factory=list)


def load_job(file: Path | None, flags: Mapping[str, Any]) -> JobSpec:
    """The job that `file` and `flags` (by field name, only those given) describe; flags win."""
    from_file = _file_source(file) if file is not None else Source({})
    from_flags = _settled(dict(flags), [], _flag_origin)
    problems = from_file.problems + from_flags.problems
    origins = {**from_file.origins, **from_flags.origins}
    try:
        spec = JobSpec.model_validate(_merged(from_file.values, from_flags.values))
    except ValidationError as error:
        raise SpecError(problems + explain(error, FLAGS, origins)) from None
    if problems:
        raise SpecError(problems)
    return spec


def _file_source(path: Path) -> Source:
    known = spellings(FLAGS)
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    problems: list[str] = []
    for key, value in read_job_file(path).items():
        name = known.get(key.replace("-", "_"))
        if name is None:
            problems.append(f"{path}: {_unknown_field(key, list(known))}")
        elif name in written:
            problems.append(f"{path}: {written[name]} and {key} are the same field; give it once")
        else:
            values[name], written[name] = value, key
    return _settled(values, problems, lambda name, key: f"{path}: {name}.{key}" if key else f"{path}: {name}")


def _unknown_field(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=3)
    hint = f" did you mean {', '.join(near)}?" if near else ""
    return f"unknown field {key!r};{hint} valid fields: {', '.join(FLAGS)}"


def _flag_origin(name: str, key: str) -> str:
    flag = FLAGS[name].metavar if name in FLAGS and FLAGS[name].argument else long_flag(name)
    return f"{flag} {key}" if key else flag


def _settled(values: dict[str, Any], problems: list[str], origin: Callable[[str, str], str]) -> Source:
    """A source whose pass-through options are in one place each, with the origin of everything it says."""
    settled = settle(values, FLAGS)
    origins = {name: origin(name, "") for name in settled.values}
    for name in _KEYED:
        entries = values.get(name)
        if isinstance(entries, Mapping):
            for key in entries:
                # The model knows an sbatch option by its long name, the user by what was written.
                known = option_name(str(key)) if name == "sbatch" else key
                origins[f"{name}.{known}"] = origin(name, str(key))
    origins.update({name: origin("sbatch", key) for name, key in settled.moved.items()})
    refused = [f"{origin('sbatch', key)}: {problem}" for key, problem in settled.problems]
    return Source(settled.values, origins, problems + refused)


def _merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Both sources in one, `high` winning: field by field, and entry by entry where a field holds entries."""
    merged = {**low, **high}
    for name in _KEYED:
        if isinstance(merged.get(name), Mapping):
            below = low.get(name)
            merged[name] = {**(below if isinstance(below, Mapping) else {}), **merged[name]}
    return _without_overruled(merged, low, high)


def _without_overruled(merged: dict[str, Any], low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """`--sbatch partition=` overrules the file's partition, and `--partition x` the file's removal of it."""
    removed_below, removed_above = _removals(low), _removals(high)
    for name, flag in FLAGS.items():
        if flag.sbatch in removed_above and name in low:
            del merged[name]
        if flag.sbatch in removed_below and name in high:
            del merged["sbatch"][flag.sbatch]
    return merged


def _removals(values: Mapping[str, Any]) -> set[str]:
    """The sbatch options that a source wants left out."""
    entries = values.get("sbatch")
    return {key for key, value in entries.items() if value == ""} if isinstance(entries, Mapping) else set()
