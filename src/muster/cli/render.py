"""`muster render`: what `muster run` would submit, and which job the variables of NeMo-RL's ray.sub describe."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from muster.api import prepare
from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.errors import BackendError, Mistake
from muster.spec import SpecError, load_job
from muster.spec.ray_sub import NO_COMMAND, as_words, job_of

R = TypeVar("R")


def from_env_option(function: Callable[..., R]) -> Callable[..., R]:
    """`--from-env`, for the commands that make a job."""
    return click.option(
        "--from-env",
        is_flag=True,
        cls=GroupedOption,
        group="Job",
        help="Take the job from ray.sub's variables (COMMAND, CONTAINER, MOUNTS, ...); the job's flags win.",
    )(function)


def with_environment(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags, and below them what ray.sub's variables say; of those that say nothing here a line each on stderr."""
    found = job_of(os.environ, flags)
    for note in found.notes:
        click.echo(f"muster: --from-env: {note}", err=True)
    if "command" not in found.fields and "command" not in flags:
        raise SpecError([NO_COMMAND])
    click.echo(f"muster: --from-env adds: {shlex.join(as_words(found.fields))}", err=True)
    return {**found.fields, **flags, "env": {**found.fields["env"], **flags.get("env", {})}}


@click.command(cls=JobCommand)
@job_options
@from_env_option
@click.option(
    "--to", type=click.Path(path_type=Path), cls=GroupedOption, group="Job", metavar="FILE", help="Write it there."
)
def render(file: Path | None, flags: dict[str, Any], from_env: bool, to: Path | None) -> None:
    """Print the script that `muster run` with the same options would submit.

    To look at: a run also has a directory with the agent and its tokens, which `muster run` writes.
    """
    spec = load_job(file, with_environment(flags) if from_env else flags)
    try:
        script = prepare(spec).script
    except Mistake as error:
        raise click.UsageError(str(error)) from error
    except BackendError as error:
        raise click.ClickException(str(error)) from error
    if to is None:
        click.echo(script, nl=False)
    else:
        to.write_text(script, encoding="utf-8")
