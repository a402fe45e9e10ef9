"""The RUN argument and the --runs-dir option, and the errors of commands that act on a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from muster.errors import BackendError
from muster.rundir import RunPaths
from muster.runs.index import NoSuchRun, all_runs, find_run
from muster.runs.lookup import NotRunning


def complete_run(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of runs that begin with what was typed, newest first; a shell shows no errors."""
    with contextlib.suppress(Exception):
        found = [run.run_id for run in all_runs(context.params.get("runs_dir"))]
        return [run_id for run_id in reversed(found) if run_id.startswith(incomplete)]
    return []


run_argument = click.argument("run", required=False, shell_complete=complete_run)

runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory to search for runs. Default: ./muster-runs, $MUSTER_RUNS_DIR and the index of all your runs.",
)


@contextlib.contextmanager
def run_errors() -> Iterator[None]:
    """Convert the error about a run that is not found, does not run or cannot be reached into exit code 1."""
    try:
        yield
    except (NoSuchRun, NotRunning, BackendError) as error:
        raise click.ClickException(str(error)) from error


def resolve_run(name: str | None, runs_dir: Path | None) -> RunPaths:
    """Return the run with this run id or job id, or the newest for None; exit with an error if there is none."""
    with run_errors():
        return find_run(name, runs_dir)
