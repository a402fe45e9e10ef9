"""The RUN argument and the --runs-dir option, shared by the commands that read runs."""

from __future__ import annotations

from pathlib import Path

import click

from muster.rundir import RunPaths
from muster.runs.index import NoSuchRun, find_run

run_argument = click.argument("run", required=False)

runs_dir_option = click.option(
    "--runs-dir", type=click.Path(path_type=Path), help="Search for runs in this directory only."
)


def resolve_run(name: str | None, runs_dir: Path | None) -> RunPaths:
    """Return the run with this run id or job id, or the newest for None; exit with an error if there is none."""
    try:
        return find_run(name, runs_dir)
    except NoSuchRun as error:
        raise click.ClickException(str(error)) from error
