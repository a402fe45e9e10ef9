"""Load a `JobSpec` from settings, a job file and flags. One error lists all problems, each with its origin."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.spec.errors import SpecError, explain
from muster.spec.flags import long_flag
from muster.spec.layers import Layer, file_layer, make_layer, merge_layers
from muster.spec.model import FLAGS, JobSpec
from muster.spec.settings import SettingsWarning, read_settings
from muster.spec.yaml_file import read_job_file

PROFILE = "profile"
"""The flag that chooses a profile of the settings; it is not a field of the job."""


@dataclass(frozen=True)
class Resolved:
    """A job with the origin of each field and each `field.key`; fields without an origin have their default."""

    spec: JobSpec
    origins: Mapping[str, str]


def load_job(file: Path | None, flags: Mapping[str, Any]) -> JobSpec:
    """Return the job from settings, `file` and `flags`: the given flags by field name, which win. Raises SpecError.

    `flags["profile"]` names a profile of the settings.
    """
    return _resolve(_merged_layers(file, flags)).spec


def explain_job(file: Path | None, flags: Mapping[str, Any]) -> Resolved:
    """Return the job as `load_job` does, with the origin of every value; a job without a command gets a dummy."""
    layer = _merged_layers(file, flags)
    layer.values.setdefault("command", ["-"])
    return _resolve(layer)


def _merged_layers(file: Path | None, flags: Mapping[str, Any]) -> Layer:
    fields = dict(flags)
    settings = read_settings(os.environ, fields.pop(PROFILE, None))
    for warning in settings.warnings:
        warnings.warn(warning, SettingsWarning, stacklevel=3)
    job_file = file_layer(str(file), read_job_file(file)) if file is not None else Layer()
    return merge_layers([*settings.layers, job_file, make_layer(fields, [], _flag_origin)])


def _resolve(layer: Layer) -> Resolved:
    try:
        spec = JobSpec.model_validate(layer.values)
    except ValidationError as error:
        raise SpecError(layer.problems + explain(error, FLAGS, layer.origins)) from None
    if layer.problems:
        raise SpecError(layer.problems)
    return Resolved(spec, layer.origins)


def _flag_origin(name: str, key: str) -> str:
    flag = FLAGS[name].metavar if name in FLAGS and FLAGS[name].argument else long_flag(name)
    return f"{flag} {key}" if key else flag
