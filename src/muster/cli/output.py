"""Tables, output of programs and notices that several commands print."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.rundir import RunPaths
from muster.slurm.jobs import SlurmJobs
from muster.views.sanitize import printable

GAP = "  "  # between columns


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    align_right: bool = False,
    pipe_width: int | None = None,
) -> None:
    """Print a table without borders; `align_right` applies to all columns but the first.

    A `pipe_width` sets the width, in characters, where stdout is no terminal: programs read one row per line.
    """
    console = Console(width=None if sys.stdout.isatty() else pipe_width, highlight=False)
    header, *cells = [[printable(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(header, *cells, strict=True)]
    if sum(widths) + len(GAP) * (len(widths) - 1) <= console.width:
        # rich takes a millisecond for each row, which is seconds for a list of all runs.
        console.print(Text(_line(header, widths, align_right), style="table.header"), soft_wrap=True)
        sys.stdout.write("".join(f"{_line(row, widths, align_right)}\n" for row in cells))
        return
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(header):
        table.add_column(Text(column), justify="right" if number and align_right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _line(row: Sequence[str], widths: Sequence[int], align_right: bool) -> str:
    """Return a row in columns of these widths."""
    padded = []
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if number and align_right else cell + space)
    return GAP.join(padded).rstrip()


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
