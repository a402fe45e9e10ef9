"""`muster runs`: list runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from muster.cli.json_output import json_option, print_json
from muster.cli.output import print_cancelled_job, print_table
from muster.cli.run_argument import run_errors, runs_dir_option
from muster.rundir import RunPaths, read_record
from muster.rundir.redaction import redact_words
from muster.runs.idle import is_idle_cluster
from muster.runs.index import all_runs, private_runs
from muster.runs.release import release_all
from muster.runs.status import read_status

PIPE_WIDTH = 250  # each run stays on one line for programs that search the list
COMMAND_WIDTH = 60


@click.command()
@json_option("Print the runs as one JSON list.")
@runs_dir_option
def runs(as_json: bool, runs_dir: Path | None) -> None:
    """List runs, oldest first. Private runs of other users are only counted."""
    with run_errors():
        listed, private = all_runs(runs_dir), private_runs(runs_dir)
    for released, jobs in release_all(listed):
        print_cancelled_job(released, jobs)
    if as_json:
        print_json([_record(run) for run in listed])
    else:
        columns = ("run", "state", "nodes", "job", "exit", "began", "command")
        print_table(columns, map(_row, listed), pipe_width=PIPE_WIDTH)
    if private:
        click.echo(f"muster: {len(private)} more in the runs directory cannot be read: runs are private", err=True)


def _record(run: RunPaths) -> dict[str, Any]:
    """Return a run as in JSON; `began` is in seconds since the epoch."""
    status, job = read_status(run), read_record(run.job)
    return {
        "run": run.run_id,
        "run_dir": run.root,
        "state": status["state"],
        "nodes": job.get("nodes"),
        "job_id": status["job_id"],
        "exit_code": status.get("exit_code"),
        "began": os.stat(run.job).st_mtime,
        "command": redact_words(job.get("command", [])),
    }


def _row(run: RunPaths) -> list[str]:
    status, job = read_status(run), read_record(run.job)
    code = status.get("exit_code")
    return [
        run.run_id,
        status["state"],
        str(job.get("nodes", "")),
        status["job_id"] or "-",
        "-" if code is None else str(code),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(os.stat(run.job).st_mtime)),
        "(muster up)" if is_idle_cluster(run) else " ".join(redact_words(job.get("command", [])))[:COMMAND_WIDTH],
    ]
