"""Load a `JobSpec` from settings, a job file and flags. One error lists all problems, each with its origin."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.errors import SettingsWarning, SpecError
from muster.spec.errors import explain
from muster.spec.fields.services import unknown_placeholders
from muster.spec.file_lines import with_line
from muster.spec.flags import long_flag
from muster.spec.layers import Layer, file_layer, make_layer, merge_layers, unknown_field
from muster.spec.model import FLAGS, JobSpec
from muster.spec.settings import read_settings
from muster.spec.yaml_file import read_job_file

PROFILE = "profile"
"""The flag that chooses a profile of the settings; it is not a field of the job."""


_NEEDS_IMAGE = ("container_mounts", "container_workdir", "container_args")
"""Fields without effect on a job that has no image. Settings may have them, for the jobs that have one."""


@dataclass(frozen=True)
class Resolved:
    """A job with the origin of each field and each `field.key`; fields without an origin have their default."""

    spec: JobSpec
    origins: Mapping[str, str]


def load_job(file: Path | None, flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> JobSpec:
    """Return the job from settings, `file` and `flags`: the given flags by field name, which win. Raises SpecError.

    `flags["profile"]` names a profile of the settings. `defaults` are fields that everything else replaces.
    """
    return _resolve(_merged_layers(file, flags, defaults)).spec


def explain_job(file: Path | None, flags: Mapping[str, Any]) -> Resolved:
    """Return the job as `load_job` does, with the origin of every value; a job without a command gets a dummy."""
    layer = _merged_layers(file, flags)
    layer.values.setdefault("command", ["-"])
    return _resolve(layer)


def job_file_problems(file: Path) -> list[str]:
    """Return the problems of a job file, each with file and line; settings are not read, the command may be missing."""
    try:
        layer = _job_file_layer(file)
        layer.values.setdefault("command", ["-"])
        _resolve(layer)
    except SpecError as error:
        return list(error.problems)
    return []


def _merged_layers(file: Path | None, flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Layer:
    fields = dict(flags)
    settings = read_settings(os.environ, fields.pop(PROFILE, None))
    for warning in settings.warnings:
        warnings.warn(warning, SettingsWarning, stacklevel=3)
    job_file = _job_file_layer(file) if file is not None else Layer()
    lowest = make_layer(dict(defaults or {}), [], _flag_origin)
    unknown = [unknown_field(name) for name in fields if name not in FLAGS]  # of the Python API
    known = {name: value for name, value in fields.items() if name in FLAGS}
    own = merge_layers([job_file, make_layer(known, unknown, _flag_origin)])
    merged = merge_layers([lowest, *settings.layers, own])
    if merged.values.get("container_image") is None:
        merged.problems += [
            f"{own.origins[name]}: has no effect without an image; give --container-image (field container_image), or "
            "remove it"
            for name in _NEEDS_IMAGE
            if own.values.get(name) is not None
        ]
    return merged


def _job_file_layer(file: Path) -> Layer:
    content = read_job_file(file)
    return file_layer(str(file), content, lines=content.lines)


def _resolve(layer: Layer) -> Resolved:
    try:
        spec = JobSpec.model_validate(layer.values)
    except ValidationError as error:
        problems = layer.problems + explain(error, FLAGS, layer.origins)
        raise SpecError([with_line(problem, layer.lines) for problem in problems]) from None
    if layer.problems:
        raise SpecError([with_line(problem, layer.lines) for problem in layer.problems])
    for path, remark in unknown_placeholders(spec.services):
        warning = with_line(f"{layer.origins['services']}.{path}: {remark}", layer.lines)
        warnings.warn(warning, SettingsWarning, stacklevel=3)
    return Resolved(spec, layer.origins)


def _flag_origin(name: str, key: str) -> str:
    field = FLAGS[name]
    flag = field.metavar if field.argument else name if field.file_only else long_flag(name)
    return f"{flag} {key}" if key else flag
