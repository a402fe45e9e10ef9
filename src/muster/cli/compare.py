"""`muster compare`: show two bring-ups side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from muster.cli.json_output import json_option, print_json
from muster.cli.output import print_table
from muster.cli.run_argument import resolve_run, runs_dir_option
from muster.views.compare import BringUpTimes, bring_up
from muster.views.compare import compare as compare_bring_ups
from muster.views.record import RunReader

PIPE_WIDTH = 200


@click.command()
@click.argument("first", metavar="RUN1")
@click.argument("second", metavar="RUN2")
@json_option("Print one JSON object.")
@runs_dir_option
def compare(first: str, second: str, as_json: bool, runs_dir: Path | None) -> None:
    """Show the bring-ups of two runs side by side: the phases before the driver's start, in seconds."""
    one, other = (bring_up(RunReader(resolve_run(name, runs_dir)).read()) for name in (first, second))
    if as_json:
        runs = [{"run": each.run, "state": each.state, "nodes": each.nodes} for each in (one, other)]
        print_json(
            {
                "runs": runs,
                "seconds": [{**asdict(row), "difference": row.difference} for row in compare_bring_ups(one, other)],
            }
        )
        return
    rows = []
    for row in compare_bring_ups(one, other):
        difference = "" if row.difference is None else f"{row.difference:+.2f}"
        rows.append([row.what, _figure(row.first), _figure(row.second), difference])
    columns = ["seconds", _title(one), _title(other), "difference"]
    print_table(columns, rows, align_right=True, pipe_width=PIPE_WIDTH)


def _title(run: BringUpTimes) -> str:
    return f"{run.run} ({run.nodes} nodes, {run.state})"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
