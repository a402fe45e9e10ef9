"""The settings around a job: a site's, a user's, a profile's, the environment's. Found and read here, merged elsewhere.

Later wins: defaults, the site's file, the user's file, the chosen profile (the site's, then the user's of that name),
`MUSTER_*`, then the job file and the flags.
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

from muster.spec.errors import SpecError
from muster.spec.layers import KEYED, Source, from_file, settled
from muster.spec.model import FLAGS
from muster.spec.yaml_file import read_settings_file

SITE_FILE = "/etc/muster/config.yaml"
SITE_VARIABLE = "MUSTER_SITE_CONFIG"
PROFILE_VARIABLE = "MUSTER_PROFILE"
PREFIX = "MUSTER_"

OF_ONE_JOB = ("command", "name")
"""Fields that say what one job is: never settings."""
_NOT_IN_ENVIRONMENT = (*OF_ONE_JOB, "groups")

_WITH_VARIABLES = ("container_image", "container_mounts", "output", "python", "runs_dir", "workdir")
"""Fields in which a settings file may write $USER: one file serves many users."""

_SET_BY_MUSTER = "ATTEMPT CYCLE GROUP HOST JOB_START KEEPER NODE OUTPUT_DIR OWNER RANK RESUME RUN_ID TASK"
_OWN_VARIABLES = {SITE_VARIABLE, PROFILE_VARIABLE, *(PREFIX + name for name in _SET_BY_MUSTER.split())}
_MISSPELT = 0.85  # near enough to a field's name to be a slip of the fingers


class SettingsWarning(UserWarning):
    """A setting that is probably not what was meant."""


@dataclass
class Settings:
    """All layers below the job file, weakest first."""

    sources: list[Source] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def settings_files(env: Mapping[str, str]) -> dict[str, Path]:
    """The files that are looked for: the site's and the user's, whether they exist or not."""
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return {"site": Path(env.get(SITE_VARIABLE) or SITE_FILE), "user": Path(home) / "muster" / "config.yaml"}


def read_settings(env: Mapping[str, str], profile: str | None = None) -> Settings:
    """Every layer, with its problems; `SpecError` where a file is no settings file or the profile is nowhere."""
    files = {
        path: content for path in settings_files(env).values() if (content := read_settings_file(path)) is not None
    }
    plain, profiles = [], []
    chosen = profile or env.get(PROFILE_VARIABLE)
    known: set[str] = set()
    for path, content in files.items():
        sections = _profiles(path, content.pop("profiles", None))
        known.update(sections)
        plain.append(_file_layer(path, content, "", env))
        if chosen in sections:
            profiles.append(_file_layer(path, sections[chosen], f"profiles.{chosen}.", env))
    if chosen and not profiles:
        raise SpecError([_no_profile(chosen, "--profile" if profile else PROFILE_VARIABLE, known, env)])
    from_environment, warnings = _environment(env)
    return Settings([*plain, *profiles, from_environment], warnings)


def _profiles(path: Path, sections: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(sections, dict) and sections is not None:
        raise SpecError([f"{path}: profiles: holds no profiles; write `profiles: {{NAME: {{partition: gpu}}}}`"])
    for name, content in (sections or {}).items():
        if not isinstance(content, dict) and content is not None:
            raise SpecError([f"{path}: profiles.{name}: holds no fields; write fields, as in `partition: gpu`"])
    return {
        str(name): {str(key): value for key, value in (content or {}).items()}
        for name, content in (sections or {}).items()
    }


def _no_profile(name: str, asked_by: str, known: set[str], env: Mapping[str, str]) -> str:
    if known:
        return f"{asked_by}: there is no profile {name!r}; there are {', '.join(sorted(known))}"
    files = " or ".join(map(str, settings_files(env).values()))
    return f"{asked_by}: there is no profile {name!r}; profiles stand under `profiles:` in {files}"


def _file_layer(path: Path, content: Mapping[str, Any], prefix: str, env: Mapping[str, str]) -> Source:
    source = from_file(str(path), content, prefix)
    for name in OF_ONE_JOB:
        if name in source.values:
            del source.values[name]
            source.problems.append(
                f"{source.origins[name]}: is no setting; it belongs in a job file or on the command line"
            )
    for name in _WITH_VARIABLES:
        if isinstance(text := source.values.get(name), str):
            try:
                source.values[name] = Template(text).substitute(env)
            except KeyError as missing:
                source.problems.append(
                    f"{source.origins[name]}: {text!r} names {missing.args[0]}, which is not set here"
                )
            except ValueError:
                source.problems.append(f"{source.origins[name]}: {text!r} has a lone $; write $$ for the character")
    return source


def _environment(env: Mapping[str, str]) -> tuple[Source, list[str]]:
    """What `MUSTER_<FIELD>` says; an empty variable says nothing."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    warnings: list[str] = []
    for variable in sorted(name for name, value in env.items() if name.startswith(PREFIX) and value):
        name = variable.removeprefix(PREFIX).lower()
        if name not in FLAGS or name in _NOT_IN_ENVIRONMENT:
            warnings += _doubt(variable, env)
        elif name in KEYED:
            try:
                values[name] = _entries(env[variable])
            except ValueError as error:
                problems.append(f"{variable}: {error}; write KEY=VALUE, several with blanks, quoted as in a shell")
        else:
            values[name] = env[variable]
    return settled(values, problems, lambda name, key: PREFIX + name.upper() + (f" {key}" if key else "")), warnings


def _entries(text: str) -> dict[str, str | None]:
    entries: dict[str, str | None] = {}
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        entries[key] = value if equals else None
    return entries


def _doubt(variable: str, env: Mapping[str, str]) -> list[str]:
    """A word about a variable that sets nothing. Inside a run the names may be Muster's own: silence there."""
    name = variable.removeprefix(PREFIX)
    if variable in _OWN_VARIABLES or "MUSTER_RUN_ID" in env:
        return []
    if name.lower() in _NOT_IN_ENVIRONMENT:
        return [f"{variable} has no effect: {name.lower()} belongs in a job file or on the command line"]
    settable = [field for field in FLAGS if field not in _NOT_IN_ENVIRONMENT]
    near = difflib.get_close_matches(name.lower(), settable, n=1, cutoff=_MISSPELT)
    return [f"{variable} has no effect; did you mean {PREFIX}{near[0].upper()}?"] if near else []
