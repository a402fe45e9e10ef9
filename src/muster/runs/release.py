"""Releasing the Slurm job of a run that is over: a job must not hold nodes on which nothing runs.

Normally the job script ends the job, right after the outcome. It does not where its host is dead, was restarted or is
cut off from Slurm. Then each process that sees the end of the run (an agent on another node: `agent/leaderless.py`;
`muster run`, `status`, `runs`, the Python API) makes sure that the job ends. Only a job that Muster submitted is ever
cancelled, and only after `squeue` has identified it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

from muster.errors import BackendError
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FIRST_LEADER
from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.runs.next_attempt import is_followed, slurm_jobs
from muster.slurm import client
from muster.slurm.jobs import ENDED, ENDING, QueuedJob, SlurmJobs, cancel_jobs, list_jobs

SCRIPT_ENDS_S = 45.0  # after the outcome a job script gives tasks 10 s to end, and the removal of a container 20 s
SCRIPT_LOOK_S = 0.2
SETTLE_LOOKS, SETTLE_LOOK_S = 4, 2.0  # Slurm shows a job as running for a moment after its script has ended
SUBMIT_SKEW_S = 120.0  # between the clocks of this host and of slurmctld


def ends_by_itself(run: RunPaths, attempt: AttemptPaths) -> bool:
    """Whether nothing speaks against the job script's ending the job: no question to Slurm is needed.

    The leader at the end ran on the script's own host, lost no node, and Muster did not fail.
    """
    if not _submitted(run):
        return True
    outcome, terms = read_record(attempt.outcome), attempt.terms()
    if not terms:
        return outcome.get("exit_code") != INFRASTRUCTURE_FAILED
    nodes = read_record(attempt.status(terms[-1])).get("nodes") or []
    lost = any(isinstance(node, dict) and node.get("state") == "lost" for node in nodes)
    led = read_record(attempt.leader(terms[-1])).get("rank", FIRST_LEADER)
    return not lost and led == FIRST_LEADER and outcome.get("exit_code") != INFRASTRUCTURE_FAILED


def is_released(run: RunPaths, attempt: AttemptPaths) -> bool:
    """Whether the job of this attempt is known to have ended."""
    said = words(attempt)
    return "gone" in said or ("ended" in said and ends_by_itself(run, attempt))


def words(attempt: AttemptPaths) -> list[str]:
    """What is recorded about the job's end: seen, ended, gone."""
    try:
        os.listdir(attempt.root)  # a network filesystem may remember for long that a file was not there
        with open(attempt.job_end, encoding="ascii", errors="replace") as file:
            return file.read().split()
    except OSError:
        return []


def release(run: RunPaths, patient: bool = True) -> SlurmJobs | None:
    """Cancel the job of a finished run if it still holds nodes; returns what was cancelled.

    `patient`: give the job script its time to end the job first; without, a run that has just ended is left alone. A
    job that waits in the queue stays: it is another attempt, or the next job of a chain. Where Slurm cannot be asked,
    nothing is done: the next process that looks at the run tries again.
    """
    attempt = run.newest_attempt()
    if attempt is None or not _is_over(attempt) or not _submitted(run) or is_released(run, attempt):
        return None
    if not _script_had_its_time(attempt, patient):
        return None
    with contextlib.suppress(BackendError):
        left = _left(run, attempt, waiting_too=False)
        if run.newest_attempt() != attempt or is_followed(attempt):
            return None
        cancelled = _cancel(run, left)
        if is_here(run):
            record_gone(attempt)
        return cancelled
    return None


def release_all(runs: Sequence[RunPaths]) -> list[tuple[RunPaths, SlurmJobs]]:
    """Release the jobs of those runs that are over, with one question for each cluster; returns what was cancelled."""
    over = [
        (run, attempt)
        for run in runs
        if (attempt := run.newest_attempt()) is not None
        and _submitted(run)
        and _is_over(attempt)
        and not is_released(run, attempt)
        and _script_had_its_time(attempt, patient=False)
    ]
    cancelled: list[tuple[RunPaths, SlurmJobs]] = []
    for cluster in dict.fromkeys(slurm_jobs(run).cluster for run, _ in over):
        try:
            queued = client.queue(cluster).jobs
        except BackendError:
            continue
        for run, attempt in over:
            own, submission = slurm_jobs(run), read_record(run.submission)
            if own.cluster != cluster:
                continue
            if any(job.submitted_id in own.ids and is_own(job, submission, run.script) for job in queued):
                jobs = release(run, patient=False)
                cancelled += [(run, jobs)] if jobs else []
            elif is_here(run):
                record_gone(attempt)
    return cancelled


def end_jobs(run: RunPaths) -> SlurmJobs | None:
    """Make sure that no job of a run that was stopped, or is over, is left; returns what was cancelled."""
    attempt = run.newest_attempt()
    if not _submitted(run):
        return None
    if attempt is not None and _is_over(attempt):
        _script_had_its_time(attempt, patient=True)
    return _cancel(run, _left(run, attempt, waiting_too=True))


def own_jobs(run: RunPaths) -> list[QueuedJob]:
    """What Slurm shows of the jobs that were submitted for the run; a job that only has the same id is left out."""
    submission = read_record(run.submission)
    seen = list_jobs(slurm_jobs(run)) if _submitted(run) else []
    return [job for job in seen if is_own(job, submission, run.script)]


def is_here(run: RunPaths) -> bool:
    """Whether the cluster that is asked about the run's jobs is the one that has them: several may share a home."""
    submission = read_record(run.submission)
    return bool(submission.get("cluster")) or submission.get("submitted_from") in (None, client.cluster_here())


def _submitted(run: RunPaths) -> bool:
    """Whether the run has jobs of its own; an allocation that it was started in is the user's."""
    return read_record(run.submission).get("kind") == "sbatch"


def _is_over(attempt: AttemptPaths) -> bool:
    return os.path.exists(attempt.outcome) and not is_followed(attempt)


def is_own(job: QueuedJob, submission: dict[str, Any], script: str) -> bool:
    """Whether the job is the one that was submitted: by its user and its script, or the moment of the submission.

    Of the two the second is for sites whose `sbatch` passes on a changed copy of the script.
    """
    if job.uid != submission.get("uid", job.uid):
        return False
    handed_over = submission.get("time", 0.0)
    asked = submission.get("asked", handed_over)
    in_time = asked - SUBMIT_SKEW_S <= job.submitted <= handed_over + SUBMIT_SKEW_S
    return job.runs(submission.get("script") or script) or (in_time and not _is_a_job_script(job.command))


def _is_a_job_script(command: str) -> bool:
    """Whether it is the script of some run: if so, its path says of which."""
    return os.path.basename(command.partition(" ")[0]) == os.path.basename(RunPaths("").script)


def _script_had_its_time(attempt: AttemptPaths, patient: bool) -> bool:
    """Whether the job script has ended, cannot, or should have by now; `patient` waits for that."""
    deadline = time.monotonic() + SCRIPT_ENDS_S
    while True:
        decided = any(os.path.exists(path) for path in (attempt.job_left, attempt.job_claim))
        if decided or not {"ended", "gone"}.isdisjoint(words(attempt)) or _age(attempt) > SCRIPT_ENDS_S:
            return True
        if not patient:
            return False
        if time.monotonic() > deadline:
            return True
        time.sleep(SCRIPT_LOOK_S)


def _age(attempt: AttemptPaths) -> float:
    """Seconds since the outcome was recorded; none if that is still to come."""
    try:
        return time.time() - os.stat(attempt.outcome).st_mtime
    except OSError:
        return 0.0


def _left(run: RunPaths, attempt: AttemptPaths | None, waiting_too: bool) -> list[QueuedJob]:
    """The jobs that are to be cancelled. One whose script has ended gets a moment to be seen as ended."""
    looks = SETTLE_LOOKS if attempt is not None and "ended" in words(attempt) else 1
    left: list[QueuedJob] = []
    for look in range(looks):
        if look:
            time.sleep(SETTLE_LOOK_S)
        left = [job for job in own_jobs(run) if _is_left(job, attempt, waiting_too)]
        if not any(job.holds_nodes for job in left):
            break
    return left


def _cancel(run: RunPaths, left: Sequence[QueuedJob]) -> SlurmJobs | None:
    if not left:
        return None
    jobs = slurm_jobs(run).only(list(dict.fromkeys(job.submitted_id for job in left)))
    cancel_jobs(jobs)
    return jobs


def _is_left(job: QueuedJob, attempt: AttemptPaths | None, waiting_too: bool) -> bool:
    """Whether the job is to be cancelled: always, by a stop; else if it is the very start that this attempt was."""
    if waiting_too:
        return not (job.state in ENDED or job.state in ENDING)
    own = read_record(attempt.slurm_job) if attempt is not None else {}
    this_start = (job.submitted_id, job.restarts) == (own.get("job_id"), own.get("restarts"))
    return job.holds_nodes and (this_start or not own)


def record_gone(attempt: AttemptPaths) -> None:
    """So that Slurm need not be asked again. Where this user may not write, it is."""
    with contextlib.suppress(OSError), open(attempt.job_end, "a", encoding="ascii") as file:
        file.write("gone\n")
