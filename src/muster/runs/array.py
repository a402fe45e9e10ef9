"""Wait for the runs of a job array: through their directories, with one query to Slurm for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from muster.errors import BackendError
from muster.rundir import RunPaths, is_listed
from muster.rundir.records import read_submission
from muster.runs.follow import RunResult, read_result
from muster.runs.monitor import SLURM_POLL_S, UNKNOWN, RunMonitor
from muster.runs.next_attempt import has_next_attempt
from muster.runs.own_jobs import slurm_jobs
from muster.runs.release import release, script_ends_job
from muster.slurm.jobs import ENDED, SlurmJobs, list_jobs

ARRAY_POLL_S = 0.5  # of all run directories


async def as_completed(runs: Sequence[RunPaths]) -> AsyncIterator[RunResult]:
    """Yield the result of each run as it ends. One rare query to Slurm finds those that recorded no end."""
    loop, first = asyncio.get_running_loop(), slurm_jobs(runs[0])
    array_job = first.only([first.ids[0].partition("_")[0]])
    left = {run.root: (run, RunMonitor(run)) for run in runs}
    queried = time.monotonic()
    while left:
        for run, monitor in list(left.values()):
            ended = await loop.run_in_executor(None, _completed, run, monitor)
            if ended is not None:
                del left[run.root]
                attempt = run.newest_attempt()
                if attempt is not None and not script_ends_job(run, attempt):
                    await loop.run_in_executor(None, release, run)
                yield ended
        if time.monotonic() - queried >= SLURM_POLL_S:
            states = await loop.run_in_executor(None, _states, array_job)
            queried = time.monotonic()
            for ended in [_dead(run, states) for run, _ in left.values()] if states is not None else []:
                if ended is not None:
                    del left[ended.run_dir]
                    yield ended
        await asyncio.sleep(ARRAY_POLL_S)


def _completed(run: RunPaths, monitor: RunMonitor) -> RunResult | None:
    """Return the run's result; None before its end, and if another attempt follows."""
    attempt = run.newest_attempt()
    if attempt is None or not is_listed(attempt.outcome) or monitor.will_continue(attempt):
        return None
    return read_result(run) if run.newest_attempt() == attempt else None


def _dead(run: RunPaths, states: dict[str, str]) -> RunResult | None:
    """Return the result of a run that recorded no end and whose job has ended, else None."""
    attempt, job_id = run.newest_attempt(), read_submission(run).job_id
    state = states.get(str(job_id), UNKNOWN)
    ended = state in ENDED or state == UNKNOWN
    if not ended or (attempt is not None and is_listed(attempt.outcome) and not has_next_attempt(attempt)):
        return None
    return read_result(run, f"Slurm job {job_id} is {state}")


def _states(array_job: SlurmJobs) -> dict[str, str] | None:
    """Return the state of each task by its id; None if Slurm does not answer."""
    try:
        return {task.id: task.state for task in list_jobs(array_job)}
    except BackendError:
        return None
