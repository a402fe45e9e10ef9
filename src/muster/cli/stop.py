"""`muster stop`: end a run and wait until its processes are gone."""

from __future__ import annotations

import functools
from dataclasses import asdict
from pathlib import Path

import click

from muster.cli.json_output import json_option, print_json
from muster.cli.run_argument import run_argument, run_errors, runs_dir_option
from muster.rundir import RunPaths
from muster.runs.follow import RunResult
from muster.runs.idle import bring_down, is_idle_cluster, shown_end
from muster.runs.lookup import NoLiveRun, live_run
from muster.runs.stop import stop_reason, stop_run
from muster.views.report import ensure_report


@click.command()
@run_argument
@json_option("Print the result as one JSON object; null if no run is live.")
@runs_dir_option
def stop(run: str | None, as_json: bool, runs_dir: Path | None) -> None:
    """End RUN (default: the only live one), and wait until every process of it is verified dead.

    Its driver gets SIGTERM. After the grace period, all processes that are left get SIGKILL. A cluster of `muster up`
    ends as with `muster down`. `muster cancel` is the same command.
    """
    with run_errors():
        try:
            paths = live_run(run, runs_dir)
        except NoLiveRun as error:
            print_no_run(str(error), as_json)
            return
        if is_idle_cluster(paths):
            ended = bring_down(paths, stop_reason())
        else:
            ended = stop_run(paths, stop_reason(), log=functools.partial(click.echo, err=as_json))
    print_end(ended, as_json)


def print_no_run(text: str, as_json: bool) -> None:
    """Print that there is nothing to end: null as JSON."""
    if as_json:
        print_json(None)
    else:
        click.echo(text)


def print_end(ended: RunResult, as_json: bool) -> None:
    """Write the report of a run that was ended, and print its result."""
    ensure_report(RunPaths(ended.run_dir))
    if as_json:
        print_json(asdict(ended))
    else:
        reason = shown_end(RunPaths(ended.run_dir), ended.state, ended.end_reason)
        click.echo(f"{ended.run}: {ended.state}: {reason}")
