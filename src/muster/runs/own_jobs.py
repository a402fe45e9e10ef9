"""Distinguish the Slurm jobs of a run from other jobs with the same ids, on this cluster or another.

Ids are reused after a reset of slurmctld, and each cluster counts its own.
"""

from __future__ import annotations

import os

from muster.rundir import RunPaths
from muster.rundir.records import Submission, read_submission
from muster.slurm import client
from muster.slurm.jobs import QueuedJob, SlurmJobs, list_jobs

CLOCK_SKEW_S = 120.0  # assumed maximum between the clocks of this host and of slurmctld


def slurm_jobs(run: RunPaths) -> SlurmJobs:
    """Return every Slurm job of the run, in the order in which they run."""
    submission = read_submission(run)
    only = (submission.job_id,) if submission.job_id else ()
    return SlurmJobs(submission.job_ids or only, submission.cluster)


def list_own_jobs(run: RunPaths) -> list[QueuedJob]:
    """Return the jobs of the run that Slurm knows, without jobs that only have the same id."""
    submission = read_submission(run)
    seen = list_jobs(slurm_jobs(run)) if submission.is_batch else []
    return [job for job in seen if is_own(job, submission, run.script)]


def is_on_this_cluster(run: RunPaths) -> bool:
    """Whether queries about the run's jobs reach their cluster: several clusters may share a home directory."""
    submission = read_submission(run)
    return bool(submission.cluster) or submission.submitted_from in (None, client.cluster_here())


def is_own(job: QueuedJob, submission: Submission, script: str) -> bool:
    """Whether the job is the submitted one: same user, and same script or time of submission.

    The time counts at sites whose `sbatch` submits a changed copy of the script.
    """
    if submission.uid not in (None, job.uid):
        return False
    submitted = submission.time or 0.0
    requested = submitted if submission.asked is None else submission.asked
    in_time = requested - CLOCK_SKEW_S <= job.submitted <= submitted + CLOCK_SKEW_S
    return job.runs(submission.script or script) or (in_time and not _is_a_job_script(job.command))


def _is_a_job_script(command: str) -> bool:
    """Whether the command is the script of some run: then its path identifies that run."""
    return os.path.basename(command.partition(" ")[0]) == os.path.basename(RunPaths("").script)
