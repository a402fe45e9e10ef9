"""`muster run`: submit or start, follow, exit with the driver's code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from muster.api import observed, prepare, submit_prepared
from muster.cli.display import Display, make_display
from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.cli.render import from_env_option, with_environment
from muster.cli.run_array import run_array
from muster.cli.run_in import run_in
from muster.doctor import preflight
from muster.errors import BackendError, Mistake
from muster.exit_codes import INFRASTRUCTURE_FAILED, INTERRUPTED
from muster.launch.run_writer import Prepared
from muster.launch.submit import attached
from muster.process import SpawnError, become_subreaper, signal_name, sweep
from muster.rundir import RunPaths
from muster.runs.follow import RunResult
from muster.runs.stop import request_stop
from muster.spec import load_job


class InfrastructureFailed(click.ClickException):
    """The job could not be started, for a reason that is not COMMAND's."""

    exit_code = INFRASTRUCTURE_FAILED


@click.command(cls=JobCommand)
@job_options
@click.option("--in", "inside", metavar="RUN", cls=GroupedOption, group="Job", help="Run on this running cluster.")
@click.option("--detach", is_flag=True, cls=GroupedOption, group="Following", help="Print run and job id, and return.")
@click.option("--dry-run", is_flag=True, cls=GroupedOption, group="Following", help="Print what would be submitted.")
@click.option("--json", "as_json", is_flag=True, cls=GroupedOption, group="Following", help="Events as JSON lines.")
@from_env_option
def run(
    file: Path | None,
    flags: dict[str, Any],
    inside: str | None,
    detach: bool,
    dry_run: bool,
    as_json: bool,
    from_env: bool,
) -> int:
    """Run COMMAND on a Ray cluster made for it, and exit with its code.

    The exit code is COMMAND's; 128+n when signal n ended it; 125 when Muster or the cluster failed; 119 when restarts
    made no progress.
    """
    if inside is not None:
        given = {"--file": file, "--from-env": from_env, "--dry-run": dry_run, "--json": as_json}
        return run_in(inside, flags, detach, [flag for flag, value in given.items() if value])
    if "idle_timeout" in flags:
        raise click.UsageError("--idle-timeout is for `muster up`: a run with a COMMAND ends with it")
    spec = load_job(file, with_environment(flags) if from_env else flags)
    with failures_told():
        prepared = prepare(spec)
        warn(prepared)
        if dry_run:
            click.echo(prepared.script, nl=False)
            return 0
        with contextlib.closing(make_display(prepared, as_json)) as display:
            return _start(prepared, display, detach)


@contextlib.contextmanager
def failures_told() -> Iterator[None]:
    """What the backends refuse or cannot do, as the command line says it: code 2 for a mistake, 125 for the rest."""
    try:
        yield
    except Mistake as error:
        raise click.UsageError(str(error)) from error
    except (BackendError, SpawnError) as error:
        raise InfrastructureFailed(str(error)) from error


def warn(prepared: Prepared) -> None:
    """What is not wrong, but better known before the job waits in the queue."""
    for warning in [*prepared.warnings, *preflight.warnings(prepared, os.environ)]:
        click.echo(f"muster: warning: {warning}", err=True)


def _start(prepared: Prepared, display: Display, detach: bool) -> int:
    if prepared.spec.array is not None:
        return run_array(prepared, display, detach)
    if detach:
        handle = submit_prepared(prepared)
        display.submitted(handle.run, handle.job_id, handle.run_dir)
        display.detached(handle.run, handle.job_id)
        return 0
    if not prepared.place.attached:
        return _submit_and_follow(prepared, display)
    become_subreaper()  # should our supervisor be killed, what it owned falls to us
    try:
        return asyncio.run(_run_attached(prepared, display))
    finally:
        sweep()


def _submit_and_follow(prepared: Prepared, display: Display) -> int:
    handle = submit_prepared(prepared)
    display.submitted(handle.run, handle.job_id, handle.run_dir)
    try:
        ended = asyncio.run(observed(RunPaths(handle.run_dir), display.show))
    except KeyboardInterrupt:
        display.close()
        click.echo(
            f"\nDetached; the job goes on. Follow it again: muster logs -f {handle.run}\n"
            f"See what it does: muster status --watch {handle.run}\nStop it: muster stop {handle.run}",
            err=True,
        )
        return INTERRUPTED
    return _finish(ended, display)


async def _run_attached(prepared: Prepared, display: Display) -> int:
    """The run lives in this process: a signal to it is a request to stop the run cleanly."""
    async with attached(prepared) as script:
        display.submitted(prepared.run.run_id, None, prepared.run.root)
        loop = asyncio.get_running_loop()

        def on_signal(signum: int) -> None:
            attempt = prepared.run.newest_attempt()
            if attempt is not None:
                request_stop(attempt, f"muster run received {signal_name(signum)}", signum)
            else:
                script.signal(signal.SIGTERM)
            display.note(f"received {signal_name(signum)}: stopping the run")

        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, on_signal, signum)
        ended = await observed(prepared.run, display.show)
    return _finish(ended, display)


def _finish(ended: RunResult, display: Display) -> int:
    display.ended(ended)
    sys.stdout.flush()
    return ended.exit_code
