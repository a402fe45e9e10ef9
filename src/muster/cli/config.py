"""`muster config`: which settings are in force, and where each of them came from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.rundir.redaction import HIDDEN, looks_secret, redact_words, scrubbed, secret_values
from muster.spec import explain_job
from muster.spec.layers import KEYED
from muster.spec.load import Resolved
from muster.spec.model import FLAGS, JobSpec
from muster.spec.settings import settings_files
from muster.views.sanitize import printable

DEFAULT = "default"

EXAMPLES = """\b
Examples:
  muster config show                        what the site, you and the environment set
  muster config show --profile gpu          the same with a profile
  muster config show -f job.yaml -N 4       what `muster run` with these words would use
"""


@click.group()
def config() -> None:
    """Show the settings in force: the site's, yours, a profile's, the environment's."""


@dataclass(frozen=True)
class Setting:
    """One value as it is shown: of a field, or of an entry of one (`env.HF_HOME`)."""

    name: str
    value: Any
    origin: str


@config.command(cls=JobCommand, epilog=EXAMPLES)
@job_options
@click.option("--all", "everything", is_flag=True, cls=GroupedOption, group="Showing", help="Defaults too.")
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="Showing", help="As one JSON object.")
def show(file: Path | None, flags: dict[str, Any], everything: bool, as_json: bool) -> None:
    """Show every value and where it came from.

    Later wins: defaults, the site's file, your file, the profile, MUSTER_ variables, job file, flags. What looks like
    a secret is hidden.
    """
    found = list(_settings(explain_job(file, flags), everything))
    if as_json:
        click.echo(json.dumps({setting.name: {"value": setting.value, "from": setting.origin} for setting in found}))
    elif found:
        # Into a file or a pipe a row stays on its line.
        Console(width=None if sys.stdout.isatty() else 10_000, highlight=False).print(_table(found))
    else:
        click.echo("everything is at its default; `muster config path` says where settings may stand")


def _table(found: list[Setting]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for setting in found:
        value = setting.value if isinstance(setting.value, str) else json.dumps(setting.value)
        table.add_row(*(Text(printable(cell)) for cell in (setting.name, value, setting.origin)))
    return table


def _settings(resolved: Resolved, everything: bool) -> Iterator[Setting]:
    """What was said by anybody, in the model's order; with `everything`, the rest at its default."""
    values, origins = resolved.spec.model_dump(mode="json"), resolved.origins
    environments = [resolved.spec.env, *(service.env for service in resolved.spec.services.values())]
    known = secret_values({key: value for env in environments for key, value in env.items()})
    for service in values["services"].values():
        service["env"] = {key: HIDDEN if looks_secret(key) else value for key, value in service["env"].items()}
    for name in FLAGS:
        if name in KEYED:
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
def path() -> None:
    """Print the files that settings are read from, and whether they are there."""
    for whose, file in settings_files(os.environ).items():
        click.echo(f"{whose}\t{file}\t{'found' if file.exists() else 'not there'}")
