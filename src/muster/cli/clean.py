"""`muster du` and `muster clean`: what runs take of the disk, and how to get it back."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from muster.cli.run_argument import runs_dir_option
from muster.rundir import RunPaths
from muster.runs.index import NoSuchRun, all_runs, find_run
from muster.runs.removal import KeptRun, RemovableRun, plan_removals, remove
from muster.runs.usage import PARTS, DiskUsage, measure, total
from muster.spec.validators import seconds
from muster.views.sanitize import printable


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--json", "as_json", is_flag=True, help="Bytes and inodes as one JSON object.")
@runs_dir_option
def du(runs: tuple[str, ...], as_json: bool, runs_dir: Path | None) -> None:
    """Show what each RUN (default: all) takes of the disk, in bytes and in files.

    \b
    logs     what the driver, the nodes and the job script wrote
    ray      archives of Ray's logs
    output   results: MUSTER_OUTPUT_DIR
    other    Muster's own
    """
    try:
        chosen = [find_run(name, runs_dir) for name in runs] or all_runs(runs_dir)
    except NoSuchRun as error:
        raise click.ClickException(str(error)) from error
    found = [(run, measure(run)) for run in chosen]
    together = {part: sum((parts[part] for _, parts in found), DiskUsage()) for part in PARTS}
    if as_json:
        listed = [{"run": run.run_id, "run_dir": run.root, **_as_json(parts)} for run, parts in found]
        click.echo(json.dumps({"runs": listed, "total": _as_json(together)}))
        return
    rows = [[run.run_id, *_sizes(parts)] for run, parts in found]
    _print_table(["run", *PARTS, "total", "files"], [*rows, [_count(len(found)), *_sizes(together)]])


def _as_json(parts: dict[str, DiskUsage]) -> dict[str, object]:
    return {**vars(total(parts)), "parts": {name: vars(usage) for name, usage in parts.items()}}


def _sizes(parts: dict[str, DiskUsage]) -> list[str]:
    everything = total(parts)
    return [*(decimal(parts[part].bytes) for part in PARTS), decimal(everything.bytes), f"{everything.files:,}"]


def _age(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        if not value.strip()[-1:].isalpha():  # 30 would be half a minute
            raise ValueError("has no unit")
        return seconds(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}; give a length of time such as 30d or 12h") from error


@click.command()
@click.option(
    "--older-than",
    metavar="AGE",
    default="30d",
    show_default=True,
    callback=_age,
    help="Runs of which nothing has come for this long: 30d, 12h, ...",
)
@click.option("--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the newest N runs in any case.")
@click.option("--with-output", is_flag=True, help="Remove results (the run's output directory), too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@runs_dir_option
def clean(older_than: float, keep: int, with_output: bool, dry_run: bool, yes: bool, runs_dir: Path | None) -> int:
    """Remove the directories of runs that ended long ago.

    A run that is live, or may be, is never touched. Where a run has results in its output directory these stay, with
    the record of how it ended; --with-output removes them, too.
    """
    decided = plan_removals(_inside(all_runs(runs_dir), runs_dir), time.time() - older_than, keep, with_output)
    for spared in decided:
        if isinstance(spared, KeptRun):
            click.echo(f"left alone: {printable(spared.run.root)} {spared.reason}", err=True)
    doomed = [each for each in decided if isinstance(each, RemovableRun)]
    if not doomed:
        click.echo("nothing to remove")
        return 0
    _show(doomed)
    if dry_run:
        return 0
    if not yes and not _confirmed(len(doomed)):
        click.echo("nothing was removed")
        return 0
    return _remove(doomed)


def _inside(runs: Sequence[RunPaths], runs_dir: Path | None) -> list[RunPaths]:
    """A link in the directory that was named may lead out of it."""
    return [run for run in runs if runs_dir is None or os.path.dirname(run.root) == os.path.realpath(runs_dir)]


def _show(doomed: Sequence[RemovableRun]) -> None:
    def row(each: RemovableRun) -> list[str]:
        day = time.strftime("%Y-%m-%d", time.localtime(each.last_activity))
        kept = "output stays" if each.keeps_output else ""
        return [each.run.run_id, day, decimal(each.frees.bytes), f"{each.frees.files:,}", kept]

    together = sum((each.frees for each in doomed), DiskUsage())
    last = [_count(len(doomed)), "", decimal(together.bytes), f"{together.files:,}", ""]
    _print_table(["run", "last sign", "frees", "files", ""], [*map(row, doomed), last])
    if any(each.keeps_output for each in doomed):
        click.echo("Where there are results, they and the record of the run stay; --with-output removes them, too.")


def _confirmed(number: int) -> bool:
    if not sys.stdin.isatty():
        raise click.ClickException("nobody is here to be asked: give --yes, or --dry-run to only look")
    return click.confirm(f"Remove {'this run' if number == 1 else f'these {number} runs'}?")


def _remove(doomed: Sequence[RemovableRun]) -> int:
    """One that cannot be removed does not keep the others."""
    freed, failed = DiskUsage(), 0
    for each in doomed:
        try:
            remove(each)
            freed += each.frees
        except OSError as error:
            failed += 1
            click.echo(f"muster: {printable(each.run.root)} could not be removed: {error}", err=True)
    click.echo(f"removed {_count(len(doomed) - failed)}: {decimal(freed.bytes)}, {freed.files:,} files")
    return 1 if failed else 0


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)
