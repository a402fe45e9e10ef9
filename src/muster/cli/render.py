"""`muster render`: print the job script that `muster run` would submit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from muster.api import prepare
from muster.cli.json_output import json_option
from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.cli.submission import from_env_option, load_submitted_job, plan_record
from muster.errors import BackendError, Mistake

EXAMPLES = """\b
Examples:
  muster render -N 4 -p gpu -- python train.py
  muster render -f job.yaml --to job.sh
"""


@click.command(cls=JobCommand, epilog=EXAMPLES)
@job_options
@from_env_option
@json_option("Print script, command and job as one JSON object.", cls=GroupedOption, group="Job")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    cls=GroupedOption,
    group="Job",
    metavar="FILE",
    help="File to write the script to. Default: stdout.",
)
def render(file: Path | None, flags: dict[str, Any], from_env: bool, as_json: bool, to: Path | None) -> None:
    """Print the script that `muster run` with the same options would submit.

    For inspection only: a run also needs a run directory with the agent and its tokens, which `muster run` writes.
    """
    spec = load_submitted_job(file, flags, from_env)
    try:
        prepared = prepare(spec)
        text = f"{json.dumps(plan_record(prepared))}\n" if as_json else prepared.script
    except Mistake as error:
        raise click.UsageError(str(error)) from error
    except BackendError as error:
        raise click.ClickException(str(error)) from error
    if to is None:
        click.echo(text, nl=False)
        return
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{to} cannot be written: {error.strerror}; give another file with --to") from error
