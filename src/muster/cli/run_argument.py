"""Which run a command is about."""

from __future__ import annotations

from pathlib import Path

import click

from muster.rundir import RunPaths
from muster.runs.index import NoSuchRun, find_run

runs_dir_option = click.option(
    "--runs-dir", type=click.Path(path_type=Path), help="Look for runs in this directory only."
)


def find(name: str | None, runs_dir: Path | None) -> RunPaths:
    """The run of this id or job id; without a name the newest. An error that says where was looked."""
    try:
        return find_run(name, runs_dir)
    except NoSuchRun as error:
        raise click.ClickException(str(error)) from error
