"""`muster doctor`: check whether runs work here, and print remedies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.json_output import json_option
from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.doctor.check_result import CheckResult
from muster.doctor.examine import Examination, Report
from muster.errors import Mistake
from muster.launch.target import choose_target
from muster.spec import load_job
from muster.views.sanitize import printable

COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
PIPE_WIDTH = 120  # characters per line where the output is no terminal

EXAMPLES = """\b
Examples:
  muster doctor                             (this machine and Slurm's configuration; no job)
  muster doctor --nodes 4 -p gpu            (four nodes, with one short job)
  muster doctor -f job.yaml                 (the nodes of the job)
  salloc -N 2 muster doctor                 (the nodes of an allocation)
"""


@click.command(cls=JobCommand, epilog=EXAMPLES)
@job_options
@json_option("Print the report as JSON.", cls=GroupedOption, group="Report")
def doctor(file: Path | None, flags: dict[str, Any], as_json: bool) -> int:
    """Check whether a run would work here: Slurm, filesystem, Python and Ray, ports, limits, clocks.

    It accepts the flags and the job file of `muster run`. Without --nodes it checks this machine and Slurm's
    configuration; with --nodes, or inside an allocation, every node, with one srun of a minute or less.

    The exit code is 0 when no check failed, 1 when one did, 125 when the checks could not be run.
    """
    spec = load_job(file, {"command": ["true"], **flags})  # the job file may lack its command
    try:
        examination = Examination(spec, choose_target(spec, os.environ), Path.cwd())
        with Console(stderr=True).status(_progress_text(examination)):
            report = examination.report()
    except Mistake as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        _print_report(report)
    return report.exit_code


def _progress_text(examination: Examination) -> str:
    if examination.where == "machine":
        return "checking this machine ..."
    nodes = examination.place.nodes
    return f"checking {nodes} node{'s' * (nodes != 1)} (the job may wait in the queue; ^C cancels) ..."


def _print_report(report: Report) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("result", "check", "finding and remedy"):
        table.add_column(column, overflow="fold")
    for result in report.results:
        state = Text(result.state, style=COLOURS[result.state])
        table.add_row(state, Text(result.check), _finding(result))
    console.print(table)
    console.print(_summary(report), soft_wrap=True)


def _finding(result: CheckResult) -> Text:
    text = Text(printable(result.what))
    return text.append("\n-> " + printable(result.advice)) if result.advice else text


def _summary(report: Report) -> str:
    states = [result.state for result in report.results]
    counts = ", ".join(f"{states.count(state)} {state}" for state in COLOURS if state in states)
    return counts if report.complete else f"{counts}; some checks could not be run"
