"""Stop a run from outside: by a request in its directory, which no firewall blocks, or by scancel without a leader."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import socket
import threading
from collections.abc import Callable, Iterator

from muster.errors import BackendError
from muster.exit_codes import TERMINATED
from muster.rundir import AttemptPaths, RunPaths, read_record, write_json
from muster.rundir.records import read_submission
from muster.runs.follow import RunResult, follow, read_result
from muster.runs.monitor import RunMonitor, finalize_dead, record_end
from muster.runs.next_attempt import has_next_attempt
from muster.runs.own_jobs import list_own_jobs, slurm_jobs
from muster.runs.release import cancel_all_jobs, record_job_gone
from muster.runs.status import ENDED_STATES, read_status
from muster.slurm.jobs import WAITING, SlurmJobs, cancel_jobs

NOTICE_S = 2.0  # what takes longer is reported
STOP_MARGIN_S = 25.0  # beyond the driver's grace: nodes stop, collect logs and record the outcome


def is_live(run: RunPaths) -> bool:
    return read_status(run)["state"] not in ENDED_STATES


def request_stop(attempt: AttemptPaths, reason: str, signum: int) -> None:
    """Write the request, which the leader polls. A later request does not replace the first."""
    if not os.path.exists(attempt.stop_request):
        write_json(attempt.stop_request, {"reason": reason, "signal": signum, "patient": True})


def stop_timeout(run: RunPaths) -> float:
    """Return the seconds within which a run ends after a request: its --stop-grace and a margin."""
    grace: float = read_record(run.job).get("stop_grace", 30.0)
    return grace + STOP_MARGIN_S


def stop_reason() -> str:
    """Return the reason of a stop that the current user requests here."""
    return f"stopped by {getpass.getuser()} on {socket.gethostname()}"


def stop_run(
    run: RunPaths, reason: str, signum: int = 15, log: Callable[[str], object] = lambda text: None
) -> RunResult:
    """Request the stop, wait, and cancel the Slurm job if no leader answers. Return the result.

    Afterwards no job of the run is left; `log` receives a line for each cancellation, and for what takes long. Raises
    BackendError if the run does not end in time.
    """

    def report(cancelled: SlurmJobs | None) -> None:
        if cancelled is not None:
            log(f"cancelled Slurm job {cancelled}")

    report(finalize_dead(run))
    with _notice(f"waiting up to {stop_timeout(run):g} s until the driver and all nodes have ended", log):
        ended = _stop(run, reason, signum, report)
    with _notice(f"waiting until Slurm job {slurm_jobs(run)} has ended", log):
        report(cancel_all_jobs(run))
    return ended


@contextlib.contextmanager
def _notice(text: str, log: Callable[[str], object]) -> Iterator[None]:
    """Log the text if the block takes longer than NOTICE_S."""
    timer = threading.Timer(NOTICE_S, log, [text])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _stop(run: RunPaths, reason: str, signum: int, report: Callable[[SlurmJobs | None], None]) -> RunResult:
    attempt = run.newest_attempt()
    if not is_live(run) and not (attempt and RunMonitor(run).will_continue(attempt)):
        return read_result(run)
    batch_jobs = slurm_jobs(run) if read_submission(run).is_batch else None
    if attempt is not None and not os.path.exists(attempt.outcome) and not has_next_attempt(attempt):
        request_stop(attempt, reason, signum)
        _cancel_pending(run)
    elif batch_jobs:
        report(cancel_all_jobs(run))
        return _cancelled(run, ", ".join(batch_jobs.ids), reason, signum)
    grace = stop_timeout(run)
    ended = asyncio.run(wait(run, grace))
    if ended is None and batch_jobs:
        report(cancel_all_jobs(run))
        ended = asyncio.run(wait(run, grace))
    if ended is None:
        raise BackendError(f"{run.run_id} did not end within {grace:g} s of the stop request; see {run.root}")
    return ended


async def wait(run: RunPaths, seconds: float) -> RunResult | None:
    """Return the result of the run if it ends within `seconds`, else None."""

    async def last() -> RunResult | None:
        async for item in follow(run):
            if isinstance(item, RunResult):
                return item
        return None

    try:
        return await asyncio.wait_for(last(), seconds)
    except asyncio.TimeoutError:
        return None


def _cancel_pending(run: RunPaths) -> None:
    """Cancel the pending jobs of a chain. One that begins all the same sees the stop request."""
    jobs = slurm_jobs(run)
    if len(jobs.ids) > 1:
        with contextlib.suppress(BackendError):
            waiting = [job.submitted_id for job in list_own_jobs(run) if job.state in WAITING]
            if waiting:
                cancel_jobs(jobs.only(waiting), pending_only=True)


def _cancelled(run: RunPaths, jobs: str, reason: str, signum: int) -> RunResult:
    """Record the outcome of a job that never began, and return the result."""
    record_end(run, TERMINATED, f"job {jobs} was cancelled before it began")
    attempt = run.newest_attempt()
    assert attempt is not None
    request_stop(attempt, reason, signum)
    record_job_gone(attempt)
    return read_result(run)
