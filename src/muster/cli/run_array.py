"""What `muster run --array` does: submit, say which runs there are, wait for all of them."""

from __future__ import annotations

import asyncio

import click

from muster.api import RunHandle, submit_tasks
from muster.cli.display import Display
from muster.exit_codes import INTERRUPTED
from muster.launch.run_writer import Prepared
from muster.rundir import RunPaths
from muster.runs.array import as_completed
from muster.views.report import leave_report


def run_array(prepared: Prepared, display: Display, detach: bool) -> int:
    """The highest exit code of the tasks. Their output is in their runs: several at once would be a jumble here."""
    handles = submit_tasks(prepared)
    for handle in handles:
        display.submitted(handle.run, handle.job_id, handle.run_dir)
    if detach:
        for handle in handles:
            display.detached(handle.run, handle.job_id)
        return 0
    try:
        return asyncio.run(_wait(handles, display))
    except KeyboardInterrupt:
        display.close()
        click.echo("\nDetached; the tasks go on. `muster runs` lists them.", err=True)
        return INTERRUPTED


async def _wait(handles: list[RunHandle], display: Display) -> int:
    highest = 0
    async for ended in as_completed([RunPaths(handle.run_dir) for handle in handles]):
        await asyncio.get_running_loop().run_in_executor(None, leave_report, RunPaths(ended.run_dir))
        display.task_ended(ended)
        highest = max(highest, ended.exit_code)
    return highest
