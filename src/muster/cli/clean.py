"""`muster clean`: remove the directories of old runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.filesize import decimal

from muster.cli.json_output import json_option, print_json
from muster.cli.output import count_runs, print_table
from muster.cli.run_argument import run_errors, runs_dir_option
from muster.rundir import RunPaths
from muster.runs.index import all_runs
from muster.runs.removal import KeptRun, RemovableRun, plan_removals, remove
from muster.runs.usage import DiskUsage
from muster.spec.validators import seconds
from muster.views.sanitize import printable


def _age(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        if not value.strip()[-1:].isalpha():  # 30 would mean half a minute
            raise ValueError("has no unit")
        return seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}; give a duration such as 30d or 12h") from error


@click.command()
@click.option(
    "--older-than",
    metavar="AGE",
    default="30d",
    show_default=True,
    callback=_age,
    help="Minimum time since the last sign of life of a run to remove, as in 30d or 12h.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Number of newest runs to keep regardless of their age.",
)
@click.option(
    "--with-output", is_flag=True, help="Remove results (the run's output directory), too. Default: keep them."
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option("Print one JSON object; needs --yes or --dry-run.")
@runs_dir_option
def clean(
    older_than: float,
    keep: int,
    with_output: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    runs_dir: Path | None,
) -> int:
    """Remove the directories of runs that ended long ago.

    A run that is live, or may be, is never touched. Results in a run's output directory are kept, with the record of
    how the run ended, unless --with-output is given.
    """
    if as_json and not (yes or dry_run):
        raise click.UsageError("cannot ask for confirmation with --json: give --yes, or --dry-run to only list")
    with run_errors():
        found = _inside(all_runs(runs_dir), runs_dir)
    decided = plan_removals(found, time.time() - older_than, keep, with_output)
    for spared in decided:
        if isinstance(spared, KeptRun):
            click.echo(f"kept: {printable(spared.run.root)} {spared.reason}", err=True)
    doomed = [each for each in decided if isinstance(each, RemovableRun)]
    if as_json:
        return _clean_as_json(doomed, dry_run)
    if not doomed:
        click.echo("nothing to remove")
        return 0
    _print_doomed(doomed)
    if dry_run:
        return 0
    if not yes and not _confirmed(len(doomed)):
        click.echo("nothing was removed")
        return 0
    return _remove(doomed)


def _inside(runs: Sequence[RunPaths], runs_dir: Path | None) -> list[RunPaths]:
    """Drop runs outside --runs-dir, to which a link in it may lead."""
    return [run for run in runs if runs_dir is None or os.path.dirname(run.root) == os.path.realpath(runs_dir)]


def _print_doomed(doomed: Sequence[RemovableRun]) -> None:
    def row(each: RemovableRun) -> list[str]:
        day = time.strftime("%Y-%m-%d", time.localtime(each.last_activity))
        kept = "output kept" if each.keeps_output else ""
        return [each.run.run_id, day, decimal(each.frees.bytes), f"{each.frees.files:,}", kept]

    together = sum((each.frees for each in doomed), DiskUsage())
    last = [count_runs(len(doomed)), "", decimal(together.bytes), f"{together.files:,}", ""]
    print_table(["run", "last sign", "frees", "files", ""], [*map(row, doomed), last], align_right=True)
    if any(each.keeps_output for each in doomed):
        click.echo("Results, and the records of their runs, are kept; --with-output removes them, too.")


def _confirmed(number: int) -> bool:
    if not sys.stdin.isatty():
        raise click.ClickException("cannot ask for confirmation here: give --yes, or --dry-run to only list")
    return click.confirm(f"Remove {'this run' if number == 1 else f'these {number} runs'}?")


def _clean_as_json(doomed: Sequence[RemovableRun], dry_run: bool) -> int:
    """Remove the runs unless `dry_run`, and print what was removed, or would be; return the exit code."""
    removed, failed = [], []
    for each in doomed:
        record = {"run": each.run.run_id, "run_dir": each.run.root, "output_kept": each.keeps_output}
        try:
            if not dry_run:
                remove(each)
            removed.append({**record, **vars(each.frees)})
        except OSError as error:
            failed.append({**record, "error": str(error)})
    print_json({"dry_run": dry_run, "removed": removed, "failed": failed})
    return 1 if failed else 0


def _remove(doomed: Sequence[RemovableRun]) -> int:
    """Remove every run that can be removed; return the exit code, 1 if one could not."""
    freed, failed = DiskUsage(), 0
    for each in doomed:
        try:
            remove(each)
            freed += each.frees
        except OSError as error:
            failed += 1
            click.echo(f"muster: {printable(each.run.root)} could not be removed: {error}", err=True)
    click.echo(f"removed {count_runs(len(doomed) - failed)}: {decimal(freed.bytes)}, {freed.files:,} files")
    return 1 if failed else 0
