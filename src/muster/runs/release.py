"""Release the Slurm job of a finished run: a job must not hold nodes on which nothing runs.

Normally the job script ends the job right after the outcome. It cannot if its host is dead, was restarted or is cut
off from Slurm. Then each process that sees the end of the run (an agent on another node: `agent/leaderless.py`;
`muster run`, `status`, `runs`, the Python API) makes sure that the job ends. Only a job that Muster submitted is
cancelled, and only after `squeue` has identified it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from muster.errors import BackendError
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FIRST_LEADER
from muster.rundir import AttemptPaths, RunPaths, private_opener, read_record
from muster.rundir.records import job_end_marks, newest_published, read_submission
from muster.runs.next_attempt import has_next_attempt
from muster.runs.own_jobs import is_on_this_cluster, is_own, list_own_jobs, slurm_jobs
from muster.slurm import client
from muster.slurm.jobs import ENDED, ENDING, QueuedJob, SlurmJobs, cancel_jobs

SCRIPT_END_TIMEOUT_S = 45.0  # after the outcome the script gives tasks 10 s to end, and the removal of a container 20 s
SCRIPT_END_POLL_S = 0.2
SETTLE_POLLS, SETTLE_POLL_S = 4, 2.0  # Slurm shows a job as running for some seconds after its script has ended


def script_ends_job(run: RunPaths, attempt: AttemptPaths) -> bool:
    """Whether the job script will end the job, so that Slurm need not be queried.

    It will if the last leader ran on the script's host, lost no node, and Muster did not fail.
    """
    if not read_submission(run).is_batch:
        return True
    outcome, terms = read_record(attempt.outcome), attempt.terms()
    if not terms:
        return outcome.get("exit_code") != INFRASTRUCTURE_FAILED
    nodes = (newest_published(attempt) or {}).get("nodes") or []
    lost = any(isinstance(node, dict) and node.get("state") == "lost" for node in nodes)
    led = read_record(attempt.leader(terms[-1])).get("rank", FIRST_LEADER)
    return not lost and led == FIRST_LEADER and outcome.get("exit_code") != INFRASTRUCTURE_FAILED


def is_released(run: RunPaths, attempt: AttemptPaths) -> bool:
    """Whether the job of this attempt is known to have ended."""
    marks = job_end_marks(attempt)
    return "gone" in marks or ("ended" in marks and script_ends_job(run, attempt))


def release(run: RunPaths, patient: bool = True) -> SlurmJobs | None:
    """Cancel the job of a finished run if it still holds nodes; return the cancelled jobs.

    With `patient`, first give the job script time to end the job; otherwise skip a run that has just ended. A pending
    job stays: it is another attempt, or the next job of a chain. If Slurm does not answer, do nothing: the next
    process that reads the run retries.
    """
    attempt = run.newest_attempt()
    if attempt is None or not _is_over(attempt) or not read_submission(run).is_batch or is_released(run, attempt):
        return None
    if not _script_time_is_over(attempt, patient):
        return None
    with contextlib.suppress(BackendError):
        left = _leftover_jobs(run, attempt, pending_too=False)
        if run.newest_attempt() != attempt or has_next_attempt(attempt):
            return None
        cancelled = _cancel(run, left)
        if is_on_this_cluster(run):
            record_job_gone(attempt)
        return cancelled
    return None


def release_all(runs: Sequence[RunPaths]) -> list[tuple[RunPaths, SlurmJobs]]:
    """Release the jobs of the finished runs with one query per cluster; return the cancelled jobs."""
    over = [
        (run, attempt)
        for run in runs
        if (attempt := run.newest_attempt()) is not None
        and read_submission(run).is_batch
        and _is_over(attempt)
        and not is_released(run, attempt)
        and _script_time_is_over(attempt, patient=False)
    ]
    cancelled: list[tuple[RunPaths, SlurmJobs]] = []
    for cluster in dict.fromkeys(slurm_jobs(run).cluster for run, _ in over):
        try:
            queued = client.queue(cluster).jobs
        except BackendError:
            continue
        for run, attempt in over:
            own, submission = slurm_jobs(run), read_submission(run)
            if own.cluster != cluster:
                continue
            if any(job.submitted_id in own.ids and is_own(job, submission, run.script) for job in queued):
                jobs = release(run, patient=False)
                cancelled += [(run, jobs)] if jobs else []
            elif is_on_this_cluster(run):
                record_job_gone(attempt)
    return cancelled


def cancel_all_jobs(run: RunPaths) -> SlurmJobs | None:
    """Cancel every job of a stopped or finished run that is left, pending ones too; return the cancelled jobs."""
    attempt = run.newest_attempt()
    if not read_submission(run).is_batch:
        return None
    if attempt is not None and _is_over(attempt):
        _script_time_is_over(attempt, patient=True)
    return _cancel(run, _leftover_jobs(run, attempt, pending_too=True))


def _is_over(attempt: AttemptPaths) -> bool:
    return os.path.exists(attempt.outcome) and not has_next_attempt(attempt)


def _script_time_is_over(attempt: AttemptPaths, patient: bool) -> bool:
    """Whether the job script has ended, cannot end, or is overdue; with `patient`, wait for that."""
    deadline = time.monotonic() + SCRIPT_END_TIMEOUT_S
    while True:
        decided = any(os.path.exists(path) for path in (attempt.job_left, attempt.job_claim))
        if decided or not {"ended", "gone"}.isdisjoint(job_end_marks(attempt)) or _age(attempt) > SCRIPT_END_TIMEOUT_S:
            return True
        if not patient:
            return False
        if time.monotonic() > deadline:
            return True
        time.sleep(SCRIPT_END_POLL_S)


def _age(attempt: AttemptPaths) -> float:
    """Return the seconds since the outcome was recorded; 0 before that."""
    try:
        return time.time() - os.stat(attempt.outcome).st_mtime
    except OSError:
        return 0.0


def _leftover_jobs(run: RunPaths, attempt: AttemptPaths | None, pending_too: bool) -> list[QueuedJob]:
    """Return the jobs to cancel. One whose script has ended is polled until Slurm shows that."""
    polls = SETTLE_POLLS if attempt is not None and "ended" in job_end_marks(attempt) else 1
    left: list[QueuedJob] = []
    for poll in range(polls):
        if poll:
            time.sleep(SETTLE_POLL_S)
        left = [job for job in list_own_jobs(run) if _is_leftover(job, attempt, pending_too)]
        if not any(job.holds_nodes for job in left):
            break
    return left


def _cancel(run: RunPaths, left: Sequence[QueuedJob]) -> SlurmJobs | None:
    if not left:
        return None
    jobs = slurm_jobs(run).only(list(dict.fromkeys(job.submitted_id for job in left)))
    cancel_jobs(jobs)
    return jobs


def _is_leftover(job: QueuedJob, attempt: AttemptPaths | None, pending_too: bool) -> bool:
    """Whether to cancel the job. With `pending_too` any that has not ended, else only this attempt's start of it."""
    if pending_too:
        return not (job.state in ENDED or job.state in ENDING)
    own = read_record(attempt.slurm_job) if attempt is not None else {}
    this_start = (job.submitted_id, job.restarts) == (own.get("job_id"), own.get("restarts"))
    return job.holds_nodes and (this_start or not own)


def record_job_gone(attempt: AttemptPaths) -> None:
    """Record that the job has ended, so that Slurm is not queried again. A read-only run is queried again."""
    with contextlib.suppress(OSError), open(attempt.job_end, "a", encoding="ascii", opener=private_opener) as file:
        file.write("gone\n")
