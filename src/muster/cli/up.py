"""`muster up`: start a cluster without a driver, for interactive work."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from muster.api import prepare, submit_prepared
from muster.cli.display import Display, make_display
from muster.cli.options import COMMON, GroupedOption, JobCommand, job_options
from muster.cli.submission import json_lines_option, print_warnings, submission_errors
from muster.exit_codes import INTERRUPTED
from muster.launch.plan import Prepared
from muster.rundir import RunPaths
from muster.runs.follow import Output, RunResult, follow
from muster.runs.idle import idle_command
from muster.spec import JobSpec, load_job

EXAMPLES = """\b
Examples:
  muster up -N 4 -p gpu --gpus-per-node 8 -t 4:00:00 --idle-timeout 30m
  muster attach                             (a shell on the head; ray.init() finds the cluster)
  muster exec --node 2 -- nvidia-smi
  muster run --in RUN -- python train.py    (a driver on the cluster)
  muster down
"""


class UpCommand(JobCommand):
    """A command with all options of a job, but without COMMAND."""

    common = COMMON - {"procs_per_node", "stall_timeout"} | {"idle_timeout", "dashboard"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"epilog": EXAMPLES, **kwargs})

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [self.options_metavar or ""]


@click.command(cls=UpCommand)
@job_options
@click.option(
    "--detach",
    is_flag=True,
    cls=GroupedOption,
    group="Following",
    help="Print the run id and job id, and exit before the cluster is ready.",
)
@json_lines_option
def up(file: Path | None, flags: dict[str, Any], detach: bool, as_json: bool) -> int:
    """Start a cluster, wait until it is ready, and leave it running.

    It runs as a Slurm job, or in the background of this machine, until `muster down`, its time limit or
    --idle-timeout. The command of a job file is ignored.
    """
    with submission_errors():
        prepared = _with_idle_driver(prepare(_spec(file, flags)))
        print_warnings(prepared)
        with contextlib.closing(make_display(prepared, as_json)) as display:
            return _start(prepared, display, detach)


def _spec(file: Path | None, flags: dict[str, Any]) -> JobSpec:
    if "command" in flags:
        raise click.UsageError("`muster up` takes no COMMAND; run it on the cluster with `muster run --in RUN -- ...`")
    spec = load_job(file, {**flags, "command": ["idle"]})
    if spec.array is not None:
        raise click.UsageError("`muster up` brings one cluster up; --array is for `muster run`")
    return spec


def _with_idle_driver(prepared: Prepared) -> Prepared:
    """Replace the command by the idle driver: one process, and without a stall timeout, because it prints nothing."""
    command = idle_command(prepared.python, prepared.run)
    idle = {"command": command, "stall_timeout": None, "procs_per_node": None}
    return replace(prepared, spec=prepared.spec.model_copy(update=idle))


def _start(prepared: Prepared, display: Display, detach: bool) -> int:
    with _deferred_interrupt() as interrupts:
        handle = submit_prepared(prepared)
    try:
        if interrupts:
            raise KeyboardInterrupt
        display.submitted(handle.run, handle.job_id, handle.run_dir)
        if detach:
            display.detached(handle.run, handle.job_id)
            return 0
        ended = asyncio.run(_wait_until_ready(RunPaths(handle.run_dir), display))
    except KeyboardInterrupt:
        display.close()
        click.echo(
            f"\nDetached; the cluster is still starting and continues.\nShow its state: muster status --watch "
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


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[list[int]]:
    """Collect interrupts instead of raising them: a submission must complete before its run id can be printed."""
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda signum, frame: received.append(signum))
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)


async def _wait_until_ready(run: RunPaths, display: Display) -> RunResult | None:
    """Return None once the cluster is ready; if it ends first, show the idle driver's output and return the result."""
    outputs: list[Output] = []
    async for item in follow(run):
        if isinstance(item, RunResult):
            for output in outputs:
                display.show(output)
            return item
        if isinstance(item, Output):
            outputs.append(item)
        elif item.fields["event"] == "driver_start":
            return None
        else:
            display.show(item)
    raise AssertionError("a followed run ends with its result")
