"""`muster config`: show the settings in force and the source of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from muster.cli.command_group import CommandGroup
from muster.cli.json_output import json_option, print_json
from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.cli.output import print_table
from muster.rundir.redaction import HIDDEN, looks_secret, redact_words, scrubbed, secret_values
from muster.spec import explain_job
from muster.spec.layers import ENTRY_FIELDS
from muster.spec.load import Resolved
from muster.spec.model import FLAGS, JobSpec
from muster.spec.settings import settings_files

DEFAULT = "default"
PIPE_WIDTH = 10_000  # each setting stays on one line for programs

EXAMPLES = """\b
Examples:
  muster config show                        settings of the site, of the user and of the environment
  muster config show --profile gpu          the same with a profile
  muster config show -f job.yaml -N 4       settings that `muster run` with these options would use
"""


@click.group(cls=CommandGroup)
def config() -> None:
    """Show the settings in force: of the site, the user, a profile and the environment."""


@dataclass(frozen=True)
class Setting:
    """One row of the list: the value of a field, or of an entry in a field (`env.HF_HOME`), and its source."""

    name: str
    value: Any
    origin: str


@config.command(cls=JobCommand, epilog=EXAMPLES)
@job_options
@click.option(
    "--all", "everything", is_flag=True, cls=GroupedOption, group="Showing", help="Include settings at their default."
)
@json_option("Print one JSON object.", cls=GroupedOption, group="Showing")
def show(file: Path | None, flags: dict[str, Any], everything: bool, as_json: bool) -> None:
    """Show every value that is set, and its source.

    Precedence, lowest first: defaults, the site's file, the user's file, the profile, MUSTER_ variables, job file,
    flags. Values that look like secrets are hidden.
    """
    found = list(_settings(explain_job(file, flags), everything))
    if as_json:
        print_json({setting.name: {"value": setting.value, "from": setting.origin} for setting in found})
    elif found:
        print_table(("setting", "value", "from"), map(_row, found), pipe_width=PIPE_WIDTH)
    else:
        click.echo("every setting has its default; `muster config path` prints the files that settings are read from")


def _row(setting: Setting) -> tuple[str, str, str]:
    value = setting.value if isinstance(setting.value, str) else json.dumps(setting.value)
    return setting.name, value, setting.origin


def _settings(resolved: Resolved, everything: bool) -> Iterator[Setting]:
    """Yield the settings with a source, in the model's order; with `everything`, also those at their default."""
    values, origins = resolved.spec.model_dump(mode="json"), resolved.origins
    environments = [resolved.spec.env, *(service.env for service in resolved.spec.services.values())]
    known = secret_values({key: value for env in environments for key, value in env.items()})
    for service in values["services"].values():
        service["env"] = {key: HIDDEN if looks_secret(key) else value for key, value in service["env"].items()}
    for name in FLAGS:
        if name in ENTRY_FIELDS:
            yield from _entries(name, values[name], origins, known)
        elif name == "command":
            if name in origins:
                yield Setting(name, redact_words(values[name], known), origins[name])
        elif name in resolved.spec.model_fields_set and (everything or values[name] != _default(name)):
            yield Setting(name, scrubbed(values[name], known), origins[name])
        elif everything:
            yield Setting(name, values[name], DEFAULT)


def _entries(name: str, entries: Mapping[str, Any], origins: Mapping[str, str], known: Any) -> Iterator[Setting]:
    for key, value in entries.items():
        shown = HIDDEN if name == "env" and looks_secret(key) else scrubbed(value, known)
        yield Setting(f"{name}.{key}", shown, origins[f"{name}.{key}"])


def _default(name: str) -> Any:
    return JobSpec.model_fields[name].get_default(call_default_factory=True)


@config.command()
@json_option("Print one JSON object.")
def path(as_json: bool) -> None:
    """Print the files that settings are read from, and whether they exist."""
    files = settings_files(os.environ)
    if as_json:
        print_json({layer: {"file": str(file), "found": file.exists()} for layer, file in files.items()})
        return
    for layer, file in files.items():
        click.echo(f"{layer}\t{file}\t{'found' if file.exists() else 'not there'}")
