"""`muster ps` and `muster reap`: what `muster.placement` runs on a run's cluster, and the end of what nobody owns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.attach import entry_for
from muster.launch.exec_step import Entry, session_environment
from muster.views.sanitize import printable

_PROGRAM = ("python", "-m", "muster.placement")


def _options(function: Any) -> Any:
    for decorate in (
        click.argument("run", required=False),
        click.option("--runs-dir", type=click.Path(path_type=Path), help="Look for runs in this directory only."),
    ):
        function = decorate(function)
    return function


@click.command()
@_options
@click.option("--json", "as_json", is_flag=True, help="Programs and groups as one JSON object.")
def ps(run: str | None, runs_dir: Path | None, as_json: bool) -> None:
    """List the programs that drivers of RUN (default: the only live one) have placed on its Ray cluster.

    These are replicas and managed subprocesses of `muster.placement`, with the process that owns each. One whose owner
    is gone was started to outlive its driver (detached); `muster reap` ends it. Ray is asked on the head, in the
    driver's environment; under Slurm this is one further step of the job, for a few seconds.
    """
    found = _ask(entry_for(run, None, runs_dir), "list")
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show(found["programs"], [group for group in found["groups"] if group["owned"] is not True])


@click.command()
@_options
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Between SIGTERM and SIGKILL.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be ended.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="What was ended as one JSON object; needs --yes or --dry-run.")
def reap(run: str | None, runs_dir: Path | None, grace: float, dry_run: bool, yes: bool, as_json: bool) -> int:
    """End what has no owner any more on the Ray cluster of RUN (default: the only live one).

    \b
    a server of Replicas     its name was released or taken by another, or the process that claimed it is gone
    any other program        the process that started it, or took it up again, is gone

    Its programs get SIGTERM and, after the grace, SIGKILL, with everything they started; then its placement groups are
    removed. What has an owner, or may have one, is never touched. `muster ps` lists everything.
    """
    if not (yes or dry_run) and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("nobody is here to be asked: give --yes, or --dry-run to only look")
    entry = entry_for(run, None, runs_dir)
    if not yes:
        lost = _without_owner(_ask(entry, "list"))
        if not _wanted(lost, dry_run, as_json):
            return 0
    ended = _ask(entry, "reap", str(grace))
    if as_json:
        click.echo(json.dumps(ended))
    else:
        click.echo(f"ended: {_names(ended) or 'nothing was without an owner'}")
    for name in ended["silent"]:
        click.echo(f"muster: {name} did not answer; its actor was killed, and its program ends with it", err=True)
    return 0


def _wanted(lost: dict[str, Any], dry_run: bool, as_json: bool) -> bool:
    """Whether somebody who has seen what would be ended wants it so."""
    if as_json:
        click.echo(json.dumps(lost))
        return False
    if not lost["programs"] and not lost["groups"]:
        click.echo("nothing is without an owner")
        return False
    _show(lost["programs"], lost["groups"])
    return not dry_run and click.confirm("End all of this?")


def _without_owner(found: dict[str, Any]) -> dict[str, Any]:
    return {kind: [each for each in listed if each["owned"] is False] for kind, listed in found.items()}


def _names(ended: dict[str, Any]) -> str:
    groups = [f"group {group['name']}" for group in ended["groups"]]
    return ", ".join([*(program["name"] for program in ended["programs"]), *groups])


def _ask(entry: Entry, *words: str) -> dict[str, Any]:
    """Run the inventory on the head, where the driver's environment knows the cluster."""
    if entry.ray_address is None:
        raise click.ClickException(f"{entry.run.run_id} has no Ray cluster: nothing is placed on it")
    try:
        done = subprocess.run(
            entry.command(pty=False),
            env=session_environment(os.environ, [*_PROGRAM, *words]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise click.ClickException(f"{error.filename} could not be run: {error.strerror}") from error
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not answers:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("srun: ")]
        raise click.ClickException(f"{entry.run.run_id} could not be asked: {said[-1] if said else 'no answer'}")
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer


def _show(programs: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
    if not programs and not groups:
        click.echo("nothing is placed on the cluster")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("program", "host", "pid", "state", "owner"):
        table.add_column(column, overflow="fold")
    rows = [[p["name"], p["host"] or "-", str(p["pid"] or "-"), _state(p), _owner(p)] for p in programs]
    rows += [[group["name"], "-", "-", "placement group", _owner(group)] for group in groups]
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)


def _state(program: dict[str, Any]) -> str:
    if program["state"] == "silent":
        return "does not answer"
    if program["state"] == "ended":
        return program["exit"] or "ended"
    return f"running for {_length(time.time() - program['since'])}"


def _length(seconds: float) -> str:
    """In the largest unit that fits.

    >>> _length(7300)
    '2 h'
    """
    for name, unit in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(0, seconds):.0f} s"


def _owner(entry: dict[str, Any]) -> str:
    return entry["why"] if entry["owned"] else f"{'none' if entry['owned'] is False else 'not known'}: {entry['why']}"
