"""`muster doctor`: is this place fit for a run, and if not, what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.doctor.check_result import CheckResult
from muster.doctor.examine import Examination, Report
from muster.errors import Mistake
from muster.launch.target import choose_target
from muster.spec import load_job
from muster.views.sanitize import printable

COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
PLAIN_WIDTH = 120  # where the output is no terminal

EXAMPLES = """\b
Examples:
  muster doctor                             (this machine, and what Slurm says; costs nothing)
  muster doctor --nodes 4 -p gpu            (four nodes, by one short job)
  muster doctor -f job.yaml                 (on as many nodes as the job has)
  salloc -N 2 muster doctor                 (the nodes of an allocation)
"""


@click.command(cls=JobCommand, epilog=EXAMPLES)
@job_options
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="Report", help="The report as JSON.")
def doctor(file: Path | None, flags: dict[str, Any], as_json: bool) -> int:
    """Check whether a run would work here: Slurm, filesystem, Python and Ray, ports, limits, clocks.

    Takes the flags and the job file of `muster run`. Without --nodes it looks at this machine and at what Slurm
    says; with it, or inside an allocation, at every node, by one srun of a minute or less.

    The exit code is 0 when nothing failed, 1 when something did, 125 when the checks could not be run.
    """
    spec = load_job(file, {"command": ["true"], **flags})  # a job file need not be complete yet
    try:
        examination = Examination(spec, choose_target(spec, os.environ), Path.cwd())
        with Console(stderr=True).status(_waiting(examination)):
            report = examination.report()
    except Mistake as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        _show(report)
    return report.exit_code


def _waiting(examination: Examination) -> str:
    if examination.where == "machine":
        return "looking at this machine ..."
    nodes = examination.place.nodes
    return f"looking at {nodes} node{'s' * (nodes != 1)} (Slurm may let us wait; ^C gives up) ..."


def _show(report: Report) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("result", "check", "found, and what to do"):
        table.add_column(column, overflow="fold")
    for verdict in report.verdicts:
        state = Text(verdict.state, style=COLOURS[verdict.state])
        table.add_row(state, Text(verdict.check), _told(verdict))
    console.print(table)
    console.print(_summary(report), soft_wrap=True)


def _told(verdict: CheckResult) -> Text:
    text = Text(printable(verdict.what))
    return text.append("\n-> " + printable(verdict.advice)) if verdict.advice else text


def _summary(report: Report) -> str:
    states = [verdict.state for verdict in report.verdicts]
    counts = ", ".join(f"{states.count(state)} {state}" for state in COLOURS if state in states)
    return counts if report.complete else f"{counts}; not everything could be checked"
