"""Waiting for the runs of a job array: all through their directories, and one question to Slurm for the lot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from muster.errors import BackendError
from muster.rundir import RunPaths, read_record
from muster.runs.follow import RunResult, has_outcome, result
from muster.runs.monitor import ASK_SLURM_S, RunMonitor
from muster.runs.next_attempt import is_followed, slurm_jobs
from muster.runs.release import ends_by_itself, release
from muster.slurm.jobs import ENDED, SlurmJobs, list_jobs

LOOK_S = 0.5


async def ends(runs: Sequence[RunPaths]) -> AsyncIterator[RunResult]:
    """The result of each run as it ends. Slurm is asked rarely, once for all, about those that said nothing."""
    loop, first = asyncio.get_running_loop(), slurm_jobs(runs[0])
    array_job = first.only([first.ids[0].partition("_")[0]])
    left = {run.root: (run, RunMonitor(run)) for run in runs}
    asked = time.monotonic()
    while left:
        for run, alive in list(left.values()):
            ended = await loop.run_in_executor(None, _ended, run, alive)
            if ended is not None:
                del left[run.root]
                attempt = run.newest_attempt()
                if attempt is not None and not ends_by_itself(run, attempt):
                    await loop.run_in_executor(None, release, run)
                yield ended
        if time.monotonic() - asked >= ASK_SLURM_S:
            states = await loop.run_in_executor(None, _states, array_job)
            asked = time.monotonic()
            for ended in [_silent(run, states) for run, _ in left.values()] if states is not None else []:
                if ended is not None:
                    del left[ended.run_dir]
                    yield ended
        await asyncio.sleep(LOOK_S)


def _ended(run: RunPaths, alive: RunMonitor) -> RunResult | None:
    """The run's result, if it has one that stands: a job that is requeued goes on."""
    attempt = run.newest_attempt()
    if attempt is None or not has_outcome(attempt) or alive.goes_on(attempt):
        return None
    return result(run) if run.newest_attempt() == attempt else None


def _silent(run: RunPaths, states: dict[str, str]) -> RunResult | None:
    """What Slurm knows of a run that has recorded no end: its job may be over all the same."""
    attempt, job_id = run.newest_attempt(), read_record(run.submission).get("job_id")
    state = states.get(str(job_id), "unknown to Slurm")
    over = state in ENDED or state == "unknown to Slurm"
    if not over or (attempt is not None and has_outcome(attempt) and not is_followed(attempt)):
        return None
    return result(run, f"Slurm job {job_id} is {state}")


def _states(array_job: SlurmJobs) -> dict[str, str] | None:
    """The state of each task by its id; None when Slurm does not answer: that says nothing about the runs."""
    try:
        return {task.id: task.state for task in list_jobs(array_job)}
    except BackendError:
        return None
