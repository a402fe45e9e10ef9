"""From settings, a job file and flags to one `JobSpec`; all problems are told at once, each with its origin."""

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
from muster.spec.layers import Source, from_file, merged, settled
from muster.spec.model import FLAGS, JobSpec
from muster.spec.settings import SettingsWarning, read_settings
from muster.spec.yaml_file import read_job_file

PROFILE = "profile"
"""Among the flags, but no field of the job: the profile whose settings are used."""


@dataclass(frozen=True)
class Resolved:
    """A job, and where each of its fields (and each `field.key`) was written; what is not there is a default."""

    spec: JobSpec
    origins: Mapping[str, str]


def load_job(file: Path | None, flags: Mapping[str, Any]) -> JobSpec:
    """The job that the settings, `file` and `flags` (by field name, only those given) describe; flags win.

    `flags["profile"]` names a profile of the settings.
    """
    return _resolve(_gathered(file, flags)).spec


def explain_job(file: Path | None, flags: Mapping[str, Any]) -> Resolved:
    """As `load_job`, with the origin of every value; a job without a command will do: it gets none that counts."""
    source = _gathered(file, flags)
    source.values.setdefault("command", ["-"])
    return _resolve(source)


def _gathered(file: Path | None, flags: Mapping[str, Any]) -> Source:
    fields = dict(flags)
    settings = read_settings(os.environ, fields.pop(PROFILE, None))
    for warning in settings.warnings:
        warnings.warn(warning, SettingsWarning, stacklevel=3)
    from_job = from_file(str(file), read_job_file(file)) if file is not None else Source()
    return merged([*settings.sources, from_job, settled(fields, [], _flag_origin)])


def _resolve(source: Source) -> Resolved:
    try:
        spec = JobSpec.model_validate(source.values)
    except ValidationError as error:
        raise SpecError(source.problems + explain(error, FLAGS, source.origins)) from None
    if source.problems:
        raise SpecError(source.problems)
    return Resolved(spec, source.origins)


def _flag_origin(name: str, key: str) -> str:
    flag = FLAGS[name].metavar if name in FLAGS and FLAGS[name].argument else long_flag(name)
    return f"{flag} {key}" if key else flag
