"""`muster up` and `muster down`: a cluster without a driver of its own, for interactive work."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from muster.api import prepare, submit_prepared
from muster.cli.display import Display, make_display
from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.cli.run import failures_told, warn
from muster.errors import BackendError
from muster.exit_codes import INTERRUPTED
from muster.launch.run_writer import Prepared
from muster.rundir import RunPaths
from muster.runs.follow import Output, RunResult, follow
from muster.runs.idle import bring_down, idle_command, is_idle_cluster
from muster.runs.index import NoSuchRun
from muster.runs.lookup import NoLiveRun, live_run
from muster.runs.stop import stop_reason
from muster.spec import JobSpec, load_job
from muster.views.report import leave_report

EXAMPLES = """\b
Examples:
  muster up -N 4 -p gpu --gpus-per-node 8 -t 4:00:00 --idle-timeout 30m
  muster attach                             (a shell on the head; ray.init() finds the cluster)
  muster exec --node 2 -- nvidia-smi
  muster run --in RUN -- python train.py    (a driver on the cluster)
  muster down
"""


class UpCommand(JobCommand):
    """All options of a job, but no COMMAND."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"epilog": EXAMPLES, **kwargs})

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [self.options_metavar or ""]


@click.command(cls=UpCommand)
@job_options
@click.option("--detach", is_flag=True, cls=GroupedOption, group="Following", help="Return before the cluster is up.")
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="Following", help="Events as JSON lines.")
def up(file: Path | None, flags: dict[str, Any], detach: bool, as_json: bool) -> int:
    """Bring a cluster up, wait until it is ready, and leave it there to be used.

    It goes on by itself, as a Slurm job or in the background of this machine, until `muster down`, its time limit or
    --idle-timeout. A job file may be one of `muster run`: its command is left out.
    """
    with failures_told():
        prepared = _idle(prepare(_spec(file, flags)))
        warn(prepared)
        with contextlib.closing(make_display(prepared, as_json)) as display:
            return _start(prepared, display, detach)


def _spec(file: Path | None, flags: dict[str, Any]) -> JobSpec:
    if "command" in flags:
        raise click.UsageError("`muster up` takes no COMMAND; run it on the cluster with `muster run --in RUN -- ...`")
    spec = load_job(file, {**flags, "command": ["idle"]})
    if spec.array is not None:
        raise click.UsageError("`muster up` brings one cluster up; --array is for `muster run`")
    return spec


def _idle(prepared: Prepared) -> Prepared:
    """With the idle driver, which is silent by nature (no stall), and one process whatever the job would be."""
    command = idle_command(prepared.python, prepared.run)
    idle = {"command": command, "stall_timeout": None, "procs_per_node": None}
    return replace(prepared, spec=prepared.spec.model_copy(update=idle))


def _start(prepared: Prepared, display: Display, detach: bool) -> int:
    with _interrupt_afterwards() as interrupted:
        handle = submit_prepared(prepared)
    try:
        if interrupted:
            raise KeyboardInterrupt
        display.submitted(handle.run, handle.job_id, handle.run_dir)
        if detach:
            display.detached(handle.run, handle.job_id)
            return 0
        ended = asyncio.run(_until_ready(RunPaths(handle.run_dir), display))
    except KeyboardInterrupt:
        display.close()
        click.echo(
            f"\nThe cluster is still coming up, and goes on without you.\nSee what it does: muster status --watch "
            f"{handle.run}\nEnd it: muster down {handle.run}",
            err=True,
        )
        return INTERRUPTED
    if ended is not None:
        display.ended(ended)
        return ended.exit_code
    display.ready(handle.run)
    display.detached(handle.run, handle.job_id)
    return 0


@contextmanager
def _interrupt_afterwards() -> Iterator[list[int]]:
    """An interrupt in here is only noted: what is half started must be whole before it can be spoken of."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: came.append(signum))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


async def _until_ready(run: RunPaths, display: Display) -> RunResult | None:
    """None when the cluster is there to be used; else how it ended, with what the idle driver had to say."""
    said: list[Output] = []
    async for item in follow(run):
        if isinstance(item, RunResult):
            for output in said:
                display.show(output)
            return item
        if isinstance(item, Output):
            said.append(item)
        elif item.fields["event"] == "driver_start":
            return None
        else:
            display.show(item)
    raise AssertionError("a followed run ends with its result")


@click.command()
@click.argument("run", required=False)
@click.option("--runs-dir", type=click.Path(path_type=Path), help="Look for runs in this directory only.")
def down(run: str | None, runs_dir: Path | None) -> int:
    """End RUN, a cluster made with `muster up` (default: the only live one), and wait until it is gone.

    Guests (`muster run --in`) get SIGTERM and their grace first. The cluster's exit code is 0.
    """
    try:
        paths = live_run(run, runs_dir, is_idle_cluster)
    except NoLiveRun:
        click.echo("no cluster is up")
        return 0
    except NoSuchRun as error:
        raise click.ClickException(str(error)) from error
    if not is_idle_cluster(paths):
        raise click.ClickException(f"{paths.run_id} runs a command of its own; end it with: muster stop {paths.run_id}")
    try:
        ended = bring_down(paths, stop_reason())
    except BackendError as error:
        raise click.ClickException(str(error)) from error
    leave_report(paths)
    click.echo(f"{ended.run}: {ended.state}: {ended.end_reason}")
    return 0
