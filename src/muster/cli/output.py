"""Tables, output of programs and notices that several commands print."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.rundir import RunPaths
from muster.slurm.jobs import SlurmJobs
from muster.views.sanitize import printable


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    align_right: bool = False,
    pipe_width: int | None = None,
) -> None:
    """Print a table without borders; `align_right` applies to all columns but the first.

    A `pipe_width` sets the width, in characters, where stdout is no terminal: programs read one row per line.
    """
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(
            Text(printable(column)), justify="right" if number and align_right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else pipe_width, highlight=False).print(table)


def write_output(data: bytes) -> None:
    """Write the output of a program to stdout unchanged, at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def count_runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def print_cancelled_job(run: RunPaths, jobs: SlurmJobs | None) -> None:
    """Report on stderr that Slurm jobs of a finished run were cancelled because they still held nodes."""
    if jobs is not None:
        click.echo(f"muster: {run.run_id} has ended but still held nodes: cancelled Slurm job {jobs}", err=True)
