"""Read the settings of site, user, profile and environment; `layers` merges them.

Later layers win: defaults, the site's file, the user's file, the chosen profile (the site's, then the user's of that
name), `MUSTER_*`, then the job file and the flags.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from muster.errors import SpecError
from muster.spec.layers import ENTRY_FIELDS, Layer, file_layer, make_layer
from muster.spec.model import FLAGS
from muster.spec.yaml_file import read_settings_file

SITE_FILE = "/etc/muster/config.yaml"
SITE_VARIABLE = "MUSTER_SITE_CONFIG"
PROFILE_VARIABLE = "MUSTER_PROFILE"
PREFIX = "MUSTER_"

JOB_ONLY = ("command", "name")
"""Fields that identify one job and therefore cannot be settings."""
_NOT_IN_ENVIRONMENT = (*JOB_ONLY, "groups")

_WITH_VARIABLES = ("container_image", "container_mounts", "output", "python", "runs_dir", "workdir")
"""Fields in which a settings file may use variables such as $USER: one file serves many users."""

_SET_BY_MUSTER = "ATTEMPT CYCLE GROUP HOST JOB_START KEEPER NODE OUTPUT_DIR OWNER RANK RESUME RUN_ID TASK"
_MUSTER_VARIABLES = {SITE_VARIABLE, PROFILE_VARIABLE, *(PREFIX + name for name in _SET_BY_MUSTER.split())}
_MISSPELLING_CUTOFF = 0.85  # minimum similarity to a field's name


@dataclass
class Settings:
    """The layers below the job file, weakest first."""

    layers: list[Layer] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def settings_files(env: Mapping[str, str]) -> dict[str, Path]:
    """Return the paths of the settings files of site and user, whether they exist or not."""
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return {"site": Path(env.get(SITE_VARIABLE) or SITE_FILE), "user": Path(home) / "muster" / "config.yaml"}


def read_settings(env: Mapping[str, str], profile: str | None = None) -> Settings:
    """Return the layers with their problems; raise SpecError for an unreadable file or an unknown profile."""
    files = {
        path: content for path in settings_files(env).values() if (content := read_settings_file(path)) is not None
    }
    plain, profiles = [], []
    chosen = profile or env.get(PROFILE_VARIABLE)
    known: set[str] = set()
    for path, content in files.items():
        sections = _profiles(path, content.pop("profiles", None))
        known.update(sections)
        plain.append(_file_layer(path, content, "", env, content.lines))
        if chosen in sections:
            profiles.append(_file_layer(path, sections[chosen], f"profiles.{chosen}.", env, content.lines))
    if chosen and not profiles:
        raise SpecError([_no_profile(chosen, "--profile" if profile else PROFILE_VARIABLE, known, env)])
    environment, warnings = _environment_layer(env)
    return Settings([*plain, *profiles, environment], warnings)


def _profiles(path: Path, sections: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(sections, dict) and sections is not None:
        raise SpecError([f"{path}: profiles: has no profiles; write `profiles: {{NAME: {{partition: gpu}}}}`"])
    for name, content in (sections or {}).items():
        if not isinstance(content, dict) and content is not None:
            raise SpecError([f"{path}: profiles.{name}: has no fields; write fields, as in `partition: gpu`"])
    return {
        str(name): {str(key): value for key, value in (content or {}).items()}
        for name, content in (sections or {}).items()
    }


def _no_profile(name: str, origin: str, known: set[str], env: Mapping[str, str]) -> str:
    if known:
        return f"{origin}: there is no profile {name!r}; known profiles: {', '.join(sorted(known))}"
    files = " or ".join(map(str, settings_files(env).values()))
    return f"{origin}: there is no profile {name!r}; define it under `profiles:` in {files}"


def _file_layer(
    path: Path, content: Mapping[str, Any], prefix: str, env: Mapping[str, str], lines: Mapping[str, int]
) -> Layer:
    layer = file_layer(str(path), content, prefix, lines, not_allowed=JOB_ONLY)
    for name in JOB_ONLY:
        if name in layer.values:
            del layer.values[name]
            layer.problems.append(
                f"{layer.origins[name]}: is not a setting; it belongs in a job file or on the command line"
            )
    for name in _WITH_VARIABLES:
        if isinstance(text := layer.values.get(name), str):
            try:
                layer.values[name] = Template(text).substitute(env)
            except KeyError as missing:
                layer.problems.append(
                    f"{layer.origins[name]}: {text!r} uses the variable {missing.args[0]}, which is not set"
                )
            except ValueError:
                layer.problems.append(f"{layer.origins[name]}: {text!r} has a $ without a name; write $$ for a $ sign")
    return layer


def _environment_layer(env: Mapping[str, str]) -> tuple[Layer, list[str]]:
    """Return the layer of `MUSTER_<FIELD>` variables and warnings about others; empty variables are ignored."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    warnings: list[str] = []
    for variable in sorted(name for name, value in env.items() if name.startswith(PREFIX) and value):
        name = variable.removeprefix(PREFIX).lower()
        if name not in FLAGS or name in _NOT_IN_ENVIRONMENT:
            warnings += _unused_variable(variable, env)
        elif name in ENTRY_FIELDS:
            try:
                values[name] = _entries(env[variable])
            except ValueError as error:
                problems.append(f"{variable}: {error}; write KEY=VALUE, separated by blanks and quoted as in a shell")
        else:
            values[name] = env[variable]
    return make_layer(values, problems, lambda name, key: PREFIX + name.upper() + (f" {key}" if key else "")), warnings


def _entries(text: str) -> dict[str, str | None]:
    entries: dict[str, str | None] = {}
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        entries[key] = value if equals else None
    return entries


def _unused_variable(variable: str, env: Mapping[str, str]) -> list[str]:
    """Return a warning if a variable without effect looks like a setting. Inside a run, Muster sets such names."""
    name = variable.removeprefix(PREFIX)
    if variable in _MUSTER_VARIABLES or "MUSTER_RUN_ID" in env:
        return []
    if name.lower() in _NOT_IN_ENVIRONMENT:
        return [f"{variable} has no effect: {name.lower()} belongs in a job file or on the command line"]
    settable = [field for field in FLAGS if field not in _NOT_IN_ENVIRONMENT]
    near = difflib.get_close_matches(name.lower(), settable, n=1, cutoff=_MISSPELLING_CUTOFF)
    return [f"{variable} has no effect; did you mean {PREFIX}{near[0].upper()}?"] if near else []
