"""`muster render`: print the job script that `muster run` would submit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from muster.api import prepare
from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.cli.submission import from_env_option, load_submitted_job
from muster.errors import BackendError, Mistake


@click.command(cls=JobCommand)
@job_options
@from_env_option
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    cls=GroupedOption,
    group="Job",
    metavar="FILE",
    help="File to write the script to. Default: stdout.",
)
def render(file: Path | None, flags: dict[str, Any], from_env: bool, to: Path | None) -> None:
    """Print the script that `muster run` with the same options would submit.

    For inspection only: a run also needs a run directory with the agent and its tokens, which `muster run` writes.
    """
    spec = load_submitted_job(file, flags, from_env)
    try:
        script = prepare(spec).script
    except Mistake as error:
        raise click.UsageError(str(error)) from error
    except BackendError as error:
        raise click.ClickException(str(error)) from error
    if to is None:
        click.echo(script, nl=False)
        return
    try:
        to.write_text(script, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{to} cannot be written: {error.strerror}; give another file with --to") from error
