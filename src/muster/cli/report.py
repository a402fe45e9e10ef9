"""`muster report` and `muster compare`: a run as a picture, and two bring-ups side by side."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.run_argument import find, runs_dir_option
from muster.rundir import write_atomic
from muster.views.compare import BringUpTimes, bring_up, compare
from muster.views.record import RunReader
from muster.views.report import report as rendered
from muster.views.report import text_of
from muster.views.sanitize import printable


@click.command()
@click.argument("run", required=False)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write to this file; - for stdout.")
@click.option("--text", is_flag=True, help="A summary for the terminal instead of a file.")
@runs_dir_option
def report(run: str | None, output: str | None, text: bool, runs_dir: Path | None) -> None:
    """Write what RUN (default: the newest) did, node by node, as one HTML file that needs no network.

    The default file is report.html in the run's own directory, where the report of every run that was followed lies
    already. A run that is not over is shown as it is now.
    """
    paths = find(run, runs_dir)
    record = RunReader(paths).read()
    if text:
        click.echo("\n".join(text_of(record)))
    elif output == "-":
        click.echo(rendered(record), nl=False)
    else:
        try:
            write_atomic(output or paths.report, rendered(record))
        except OSError as error:
            raise click.ClickException(f"{output or paths.report} cannot be written: {error.strerror}") from error
        click.echo(output or paths.report)


@click.command(name="compare")
@click.argument("first", metavar="RUN1")
@click.argument("second", metavar="RUN2")
@runs_dir_option
def compare_(first: str, second: str, runs_dir: Path | None) -> None:
    """Show the bring-ups of two runs side by side: what the way to the driver was made of, in seconds."""
    one, other = (bring_up(RunReader(find(name, runs_dir)).read()) for name in (first, second))
    table = Table(box=None, pad_edge=False)
    table.add_column("seconds")
    for title in (_title(one), _title(other), "difference"):
        table.add_column(Text(title), justify="right", overflow="fold")
    for row in compare(one, other):
        difference = "" if row.difference is None else f"{row.difference:+.2f}"
        table.add_row(row.what, _figure(row.first), _figure(row.second), difference)
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def _title(run: BringUpTimes) -> str:
    return printable(f"{run.run} ({run.nodes} nodes, {run.state})")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
