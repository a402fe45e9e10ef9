"""Ending a run from outside: a request in its directory, which works through any firewall; scancel where no leader
is."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import socket
from collections.abc import Callable

from muster.errors import BackendError
from muster.exit_codes import TERMINATED
from muster.rundir import AttemptPaths, RunPaths, read_json, write_json
from muster.runs.follow import RunResult, follow, result
from muster.runs.monitor import RunMonitor, finalize_dead, record_end
from muster.runs.next_attempt import is_followed, slurm_jobs
from muster.runs.release import end_jobs, own_jobs, record_gone
from muster.runs.status import ENDED_STATES, read_status
from muster.slurm.jobs import WAITING, SlurmJobs, cancel_jobs

BEYOND_GRACE_S = 25.0  # what the nodes may take to end after the driver


def is_live(run: RunPaths) -> bool:
    return read_status(run)["state"] not in ENDED_STATES


def request_stop(attempt: AttemptPaths, reason: str, signum: int) -> None:
    """Leave the request where the leader looks; the first one stands."""
    if not os.path.exists(attempt.stop_request):
        write_json(attempt.stop_request, {"reason": reason, "signal": signum, "patient": True})


def requester() -> str:
    return f"stopped by {getpass.getuser()} on {socket.gethostname()}"


def stop_run(
    run: RunPaths, reason: str, signum: int = 15, tell: Callable[[str], object] = lambda text: None
) -> RunResult:
    """Ask, wait, and if nobody listens end the Slurm job itself. Returns how the run ended.

    In any case no job of the run is left: what had to be cancelled is told in words.
    """

    def told(cancelled: SlurmJobs | None) -> None:
        if cancelled is not None:
            tell(f"cancelled Slurm job {cancelled}")

    told(finalize_dead(run))
    ended = _stop(run, reason, signum, told)
    told(end_jobs(run))
    return ended


def _stop(run: RunPaths, reason: str, signum: int, told: Callable[[SlurmJobs | None], None]) -> RunResult:
    attempt = run.newest_attempt()
    if not is_live(run) and not (attempt and RunMonitor(run).goes_on(attempt)):
        return result(run)
    batch_jobs = slurm_jobs(run) if (read_json(run.submission) or {}).get("kind") == "sbatch" else None
    if attempt is not None and not os.path.exists(attempt.outcome) and not is_followed(attempt):
        request_stop(attempt, reason, signum)
        _cancel_the_rest(run)
    elif batch_jobs:
        told(end_jobs(run))
        return _cancelled(run, ", ".join(batch_jobs.ids), reason, signum)
    grace = (read_json(run.job) or {}).get("stop_grace", 30.0) + BEYOND_GRACE_S
    ended = asyncio.run(wait(run, grace))
    if ended is None and batch_jobs:
        told(end_jobs(run))
        ended = asyncio.run(wait(run, grace))
    if ended is None:
        raise BackendError(f"{run.run_id} did not end within {grace:g} s of being asked; see {run.root}")
    return ended


async def wait(run: RunPaths, seconds: float) -> RunResult | None:
    """The result, if the run ends in this time."""

    async def last() -> RunResult | None:
        async for item in follow(run):
            if isinstance(item, RunResult):
                return item
        return None

    try:
        return await asyncio.wait_for(last(), seconds)
    except asyncio.TimeoutError:
        return None


def _cancel_the_rest(run: RunPaths) -> None:
    """The jobs of a chain that wait for the one that runs. Should one begin all the same, it sees the request."""
    jobs = slurm_jobs(run)
    if len(jobs.ids) > 1:
        with contextlib.suppress(BackendError):
            waiting = [job.submitted_id for job in own_jobs(run) if job.state in WAITING]
            if waiting:
                cancel_jobs(jobs.only(waiting), pending_only=True)


def _cancelled(run: RunPaths, jobs: str, reason: str, signum: int) -> RunResult:
    """A job that never began leaves no outcome: record it where readers look, and where the job would."""
    record_end(run, TERMINATED, f"job {jobs} was cancelled before it began")
    attempt = run.newest_attempt()
    assert attempt is not None
    request_stop(attempt, reason, signum)
    record_gone(attempt)
    return result(run)
