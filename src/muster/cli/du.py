"""`muster du`: show the disk usage of runs."""

from __future__ import annotations

from pathlib import Path

import click
from rich.filesize import decimal

from muster.cli.json_output import json_option, print_json
from muster.cli.output import count_runs, print_table
from muster.cli.run_argument import resolve_run, run_errors, runs_dir_option
from muster.runs.index import all_runs
from muster.runs.usage import PARTS, DiskUsage, measure, total


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@json_option("Print bytes and inodes as one JSON object.")
@runs_dir_option
def du(runs: tuple[str, ...], as_json: bool, runs_dir: Path | None) -> None:
    """Show the disk usage of each RUN (default: all), in bytes and in files.

    \b
    logs     output of the driver, the nodes and the job script
    ray      archives of Ray's logs
    output   results: MUSTER_OUTPUT_DIR
    other    Muster's own files
    """
    with run_errors():
        chosen = [resolve_run(name, runs_dir) for name in runs] or all_runs(runs_dir)
    found = [(run, measure(run)) for run in chosen]
    together = {part: sum((parts[part] for _, parts in found), DiskUsage()) for part in PARTS}
    if as_json:
        listed = [{"run": run.run_id, "run_dir": run.root, **_as_json(parts)} for run, parts in found]
        print_json({"runs": listed, "total": _as_json(together)})
        return
    rows = [[run.run_id, *_sizes(parts)] for run, parts in found]
    rows.append([count_runs(len(found)), *_sizes(together)])
    print_table(["run", *PARTS, "total", "files"], rows, align_right=True)


def _as_json(parts: dict[str, DiskUsage]) -> dict[str, object]:
    return {**vars(total(parts)), "parts": {name: vars(usage) for name, usage in parts.items()}}


def _sizes(parts: dict[str, DiskUsage]) -> list[str]:
    everything = total(parts)
    return [*(decimal(parts[part].bytes) for part in PARTS), decimal(everything.bytes), f"{everything.files:,}"]
