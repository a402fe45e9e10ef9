"""`muster run`: submit or start a job, follow it, exit with the driver's code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

import click

from muster.api import RunHandle, follow_run, prepare, submit_prepared, submit_tasks
from muster.cli.display import Display, make_display
from muster.cli.options import GroupedOption, JobCommand, job_options
from muster.cli.run_in import run_in
from muster.cli.submission import (
    from_env_option,
    json_lines_option,
    load_submitted_job,
    print_plan,
    print_warnings,
    submission_errors,
)
from muster.exit_codes import INTERRUPTED
from muster.launch.plan import Prepared
from muster.launch.submit import attached
from muster.process import become_subreaper, signal_name, sweep
from muster.rundir import RunPaths
from muster.runs.array import as_completed
from muster.runs.follow import RunResult
from muster.runs.stop import request_stop
from muster.views.report import ensure_report


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--in",
    "inside",
    metavar="RUN",
    cls=GroupedOption,
    group="Job",
    help="Run on the cluster of RUN. Default: start one.",
)
@click.option(
    "--detach", is_flag=True, cls=GroupedOption, group="Following", help="Print the run id and job id, and exit."
)
@click.option(
    "--dry-run",
    is_flag=True,
    cls=GroupedOption,
    group="Following",
    help="Print the script, or with --json the plan; submit nothing.",
)
@json_lines_option
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
    """Run COMMAND on a Ray cluster started for it, and exit with its code.

    The exit code is COMMAND's; 128+n when signal n ended it; 125 when Muster or the cluster failed; 119 when restarts
    made no progress.
    """
    if inside is not None:
        given = {"--file": file, "--from-env": from_env, "--dry-run": dry_run, "--json": as_json}
        return run_in(inside, flags, detach, [flag for flag, value in given.items() if value])
    if "idle_timeout" in flags:
        raise click.UsageError("--idle-timeout is for `muster up`: a run with a COMMAND ends with it")
    spec = load_submitted_job(file, flags, from_env)
    with submission_errors():
        prepared = prepare(spec)
        print_warnings(prepared)
        if dry_run:
            print_plan(prepared, as_json)
            return 0
        with contextlib.closing(make_display(prepared, as_json)) as display:
            return _start(prepared, display, detach)


def _start(prepared: Prepared, display: Display, detach: bool) -> int:
    if prepared.spec.array is not None:
        return _run_array(prepared, display, detach)
    if detach:
        handle = submit_prepared(prepared)
        display.submitted(handle.run, handle.job_id, handle.run_dir)
        display.detached(handle.run, handle.job_id)
        return 0
    if not prepared.target.attached:
        return _submit_and_follow(prepared, display)
    become_subreaper()  # if our supervisor is killed, its processes are reparented to this process
    try:
        return asyncio.run(_run_attached(prepared, display))
    finally:
        sweep()


def _submit_and_follow(prepared: Prepared, display: Display) -> int:
    handle = submit_prepared(prepared)
    display.submitted(handle.run, handle.job_id, handle.run_dir)
    try:
        ended = asyncio.run(follow_run(RunPaths(handle.run_dir), display.show))
    except KeyboardInterrupt:
        display.close()
        click.echo(
            f"\nDetached; the job continues. Follow it again: muster logs -f {handle.run}\n"
            f"Show its state: muster status --watch {handle.run}\nStop it: muster stop {handle.run}",
            err=True,
        )
        return INTERRUPTED
    return _finish(ended, display)


async def _run_attached(prepared: Prepared, display: Display) -> int:
    """Run the job in this process; a signal requests a clean stop of the run."""
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
        ended = await follow_run(prepared.run, display.show)
    return _finish(ended, display)


def _finish(ended: RunResult, display: Display) -> int:
    display.ended(ended)
    sys.stdout.flush()
    return ended.exit_code


def _run_array(prepared: Prepared, display: Display, detach: bool) -> int:
    """Submit the tasks of --array, wait for them and return their highest exit code.

    Their output stays in their run directories: several drivers at once would be unreadable here.
    """
    handles = submit_tasks(prepared)
    for handle in handles:
        display.submitted(handle.run, handle.job_id, handle.run_dir)
    if detach:
        for handle in handles:
            display.detached(handle.run, handle.job_id)
        return 0
    try:
        return asyncio.run(_wait_for_tasks(handles, display))
    except KeyboardInterrupt:
        display.close()
        click.echo("\nDetached; the tasks continue. `muster runs` lists them.", err=True)
        return INTERRUPTED


async def _wait_for_tasks(handles: list[RunHandle], display: Display) -> int:
    highest = 0
    async for ended in as_completed([RunPaths(handle.run_dir) for handle in handles]):
        await asyncio.get_running_loop().run_in_executor(None, ensure_report, RunPaths(ended.run_dir))
        display.task_ended(ended)
        highest = max(highest, ended.exit_code)
    return highest
