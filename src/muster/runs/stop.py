"""Ending a run from outside: a request in its directory, which works through any firewall; scancel where no lead is."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket

from muster.backends.errors import BackendError
from muster.backends.slurm import client
from muster.board import AttemptPaths, RunPaths, read_json, write_json
from muster.runs.follow import RunResult, follow, result
from muster.runs.liveness import record_end, settle
from muster.runs.status import ENDED_STATES, read_status

BEYOND_GRACE_S = 25.0  # what the nodes may take to end after the driver


def is_live(run: RunPaths) -> bool:
    return read_status(run)["state"] not in ENDED_STATES


def request_stop(attempt: AttemptPaths, reason: str, signum: int) -> None:
    """Leave the request where the lead looks; the first one stands."""
    if not os.path.exists(attempt.stop_request):
        write_json(attempt.stop_request, {"reason": reason, "signal": signum, "patient": True})


def requester() -> str:
    return f"stopped by {getpass.getuser()} on {socket.gethostname()}"


def stop_run(run: RunPaths, reason: str, signum: int = 15) -> RunResult:
    """Ask, wait, and if nobody listens end the Slurm job itself. Returns how the run ended."""
    settle(run)
    if not is_live(run):
        return result(run)
    submission = read_json(run.submission) or {}
    batch_job = submission.get("job_id") if submission.get("kind") == "sbatch" else None
    attempt = run.newest_attempt()
    if attempt is not None and not os.path.exists(attempt.outcome):
        request_stop(attempt, reason, signum)
    elif batch_job:
        client.cancel(batch_job)
        return _cancelled(run, batch_job)
    grace = (read_json(run.job) or {}).get("stop_grace", 30.0) + BEYOND_GRACE_S
    ended = asyncio.run(wait(run, grace))
    if ended is None and batch_job:
        client.cancel(batch_job)
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


def _cancelled(run: RunPaths, job_id: str) -> RunResult:
    """A job that never began leaves no outcome: record it where readers look."""
    record_end(run, 143, f"job {job_id} was cancelled before it began")
    return result(run)
