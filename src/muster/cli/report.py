"""`muster report`: write the report of a run."""

from __future__ import annotations

from pathlib import Path

import click

from muster.cli.json_output import json_option, print_json
from muster.cli.run_argument import resolve_run, run_argument, runs_dir_option
from muster.rundir import PRIVATE_FILE_MODE, write_atomic
from muster.views.record import RunReader
from muster.views.report import model_of, text_of
from muster.views.report import report as rendered


@click.command()
@run_argument
@click.option(
    "--to",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File to write to; - for stdout. Default: report.html in the run directory.",
)
@click.option("-o", "--output", "old_to", type=click.Path(dir_okay=False), hidden=True)  # the earlier names of --to
@click.option("--text", is_flag=True, help="Print a summary instead of writing a file.")
@json_option("Print the data of the report as one JSON object instead of writing a file.")
@runs_dir_option
def report(
    run: str | None, to: str | None, old_to: str | None, text: bool, as_json: bool, runs_dir: Path | None
) -> None:
    """Write a report on RUN (default: the newest), node by node, as one HTML file that needs no network.

    Muster also writes report.html in the run directory when a followed run ends. The report of a live run shows its
    present state.
    """
    output = to or old_to
    paths = resolve_run(run, runs_dir)
    record = RunReader(paths).read()
    if as_json:
        print_json(model_of(record))
    elif text:
        click.echo("\n".join(text_of(record)))
    elif output == "-":
        click.echo(rendered(record), nl=False)
    else:
        try:
            write_atomic(output or paths.report, rendered(record), mode=0o644 if output else PRIVATE_FILE_MODE)
        except OSError as error:
            raise click.ClickException(
                f"{output or paths.report} cannot be written: {error.strerror}; give another file with --to"
            ) from error
        click.echo(output or paths.report)
