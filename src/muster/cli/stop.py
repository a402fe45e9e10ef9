"""`muster stop`: end a run and wait until its processes are gone."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.run_argument import run_argument, run_errors, runs_dir_option
from muster.rundir import RunPaths
from muster.runs.lookup import NoLiveRun, live_run
from muster.runs.stop import stop_reason, stop_run
from muster.views.report import ensure_report


@click.command()
@run_argument
@runs_dir_option
def stop(run: str | None, runs_dir: Path | None) -> None:
    """End RUN (default: the only live one): SIGTERM to its driver, the grace period, then SIGKILL to what is left.

    Waits until every process of the run is verified dead.
    """
    with run_errors():
        try:
            ended = stop_run(live_run(run, runs_dir), stop_reason(), log=click.echo)
        except NoLiveRun as error:
            click.echo(str(error))
            return
    ensure_report(RunPaths(ended.run_dir))
    click.echo(f"{ended.run}: {ended.state}: {ended.end_reason}")
