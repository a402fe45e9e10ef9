"""The Slurm jobs of a run, and other jobs with the same ids."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.rundir.records import Submission
from muster.runs.own_jobs import CLOCK_SKEW_S, is_on_this_cluster, is_own, list_own_jobs, slurm_jobs
from muster.slurm.jobs import QueuedJob, SlurmJobs

SUBMISSION = Submission(uid=1000, asked=5000.0, time=5010.0, script="/runs/r/job.sh")


@pytest.mark.parametrize(
    ("uid", "submitted", "command", "own"),
    [
        (1000, 5005.0, "/runs/r/job.sh", True),
        (1000, 9000.0, "/runs/r/job.sh 2", True),  # a later job of the chain, or a requeued one
        (1001, 5005.0, "/runs/r/job.sh", False),
        (1000, 5005.0, "/runs/r/job.sh.old", True),  # a changed copy, known by the time of its submission
        (1000, 5005.0, "/var/spool/copy-of-it", True),
        (1000, 5005.0, "/runs/another/job.sh", False),  # the script of another run
        (1000, 5010.0 + CLOCK_SKEW_S, "/var/spool/copy-of-it", True),
        (1000, 5011.0 + CLOCK_SKEW_S, "/var/spool/copy-of-it", False),
        (1000, 5000.0 - CLOCK_SKEW_S, "/var/spool/copy-of-it", True),
        (1000, 4999.0 - CLOCK_SKEW_S, "/var/spool/copy-of-it", False),
    ],
)
def test_a_job_is_known_by_user_and_script_or_time(uid: int, submitted: float, command: str, own: bool) -> None:
    assert is_own(QueuedJob("17", "RUNNING", 0, uid, submitted, command), SUBMISSION, "/elsewhere/job.sh") == own


def test_a_submission_without_a_script_means_that_of_the_run_directory() -> None:
    job = QueuedJob("17", "RUNNING", 0, 1000, 0.0, "/runs/r/job.sh")
    assert is_own(job, Submission(), "/runs/r/job.sh") and not is_own(job, Submission(time=9e9), "/runs/x/job.sh")


@pytest.mark.parametrize(
    ("fields", "jobs"),
    [
        ({"job_id": None}, SlurmJobs(())),
        ({"job_id": "17"}, SlurmJobs(("17",))),
        ({"job_id": "17", "job_ids": ["17", "18"], "cluster": "west"}, SlurmJobs(("17", "18"), "west")),
    ],
)
def test_the_jobs_of_a_run_are_those_of_its_submission(run: FakeRun, fields: dict[str, Any], jobs: SlurmJobs) -> None:
    assert slurm_jobs(run.submitted(**fields)) == jobs


def test_slurm_is_asked_only_about_jobs_that_muster_submitted(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    fake_slurm.knows("17", "RUNNING", run.script)
    assert list_own_jobs(run.submitted(kind="allocation", job_id="17")) == [] and fake_slurm.calls == []
    assert [job.id for job in list_own_jobs(run.submitted(job_id="17"))] == ["17"]
    fake_slurm.knows("17", "RUNNING", run.script, uid=os.geteuid() + 1)
    assert list_own_jobs(run.submitted(job_id="17", uid=os.geteuid())) == []


@pytest.mark.parametrize(
    ("fields", "here"),
    [
        ({}, True),
        ({"submitted_from": "home"}, True),
        ({"submitted_from": "away"}, False),
        ({"submitted_from": "away", "cluster": "west"}, True),  # queries name it
    ],
)
def test_a_query_reaches_the_cluster_of_the_submission_or_the_one_it_names(
    run: FakeRun, fake_slurm: FakeSlurm, fields: dict[str, Any], here: bool
) -> None:
    assert is_on_this_cluster(run.submitted(job_id="17", **fields)) == here
