"""`muster programs`: list what `muster.placement` runs on a run's cluster."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.json_output import json_option, print_json
from muster.cli.node_entry import entry_for
from muster.cli.placement_inventory import print_placement, query_placement
from muster.cli.run_argument import run_argument, runs_dir_option


@click.command()
@run_argument
@runs_dir_option
@json_option("Print programs and groups as one JSON object.")
def programs(run: str | None, runs_dir: Path | None, as_json: bool) -> None:
    """List the programs that drivers of RUN (default: the only live one) have placed on its Ray cluster.

    These are replicas and managed subprocesses of `muster.placement`, each with the process that owns it. A detached
    program outlives its driver and may have no owner any more; `muster reap` ends it. The query runs on the head, in
    the driver's environment; under Slurm it is one further step of the job, for a few seconds.
    `muster runs` lists runs.
    """
    found = query_placement(entry_for(run, None, runs_dir), "list")
    if as_json:
        print_json(found)
    else:
        print_placement(found["programs"], [group for group in found["groups"] if group["owned"] is not True])
