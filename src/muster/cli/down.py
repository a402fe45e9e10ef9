"""`muster down`: end a cluster started with `muster up`."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.json_output import json_option
from muster.cli.run_argument import run_argument, run_errors, runs_dir_option
from muster.cli.stop import print_end, print_no_run
from muster.runs.idle import bring_down, is_idle_cluster
from muster.runs.lookup import NoLiveRun, live_run
from muster.runs.stop import stop_reason


@click.command()
@run_argument
@json_option("Print the result as one JSON object; null if no cluster is up.")
@runs_dir_option
def down(run: str | None, as_json: bool, runs_dir: Path | None) -> int:
    """End RUN, a cluster started with `muster up` (default: the only live one), and wait until it is gone.

    Guest sessions (`muster run --in`) get SIGTERM and their grace period first. The cluster's exit code is 0.
    """
    with run_errors():
        try:
            paths = live_run(run, runs_dir, is_idle_cluster)
        except NoLiveRun:
            print_no_run("no cluster is up", as_json)
            return 0
        if not is_idle_cluster(paths):
            raise click.ClickException(
                f"{paths.run_id} was not started with `muster up`; end it with: muster stop {paths.run_id}"
            )
        ended = bring_down(paths, stop_reason())
    print_end(ended, as_json)
    return 0
