"""Records that several programs share: the submission, the newest status, the end of the job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from muster.rundir import RunPaths, write_json
from muster.rundir.records import Submission, job_end_marks, newest_published, read_submission, write_submission


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    run = RunPaths(str(tmp_path / "r"))
    os.makedirs(run.attempt(0).root)
    return run


WRITTEN = Submission(
    run="r",
    backend="slurm",
    kind="sbatch",
    job_id="17",
    job_ids=("17", "18"),
    cluster="east",
    submitted_from="home",
    uid=1_900_000_000,
    script="/runs/r/job.sh",
    host="login1",
    pid=4_194_303,
    asked=1.5,
    time=2.0,
)


def test_a_submission_is_read_as_it_was_written(run: RunPaths) -> None:
    write_submission(run, WRITTEN)
    assert read_submission(run) == WRITTEN
    assert list(json.loads(Path(run.submission).read_text())) == list(Submission.__dataclass_fields__)


def test_a_missing_submission_has_no_values(run: RunPaths) -> None:
    assert read_submission(run) == Submission()
    assert not read_submission(run).is_batch


def test_a_value_of_another_type_counts_as_not_recorded(run: RunPaths) -> None:
    odd = {"kind": ["sbatch"], "job_id": 17, "job_ids": "17", "uid": True, "pid": "4", "time": "now", "asked": 3}
    write_json(run.submission, odd)
    assert read_submission(run) == Submission(asked=3)
    write_json(run.submission, {"job_ids": ["17", None, 18]})
    assert read_submission(run).job_ids == ("17",)


@pytest.mark.parametrize(("kind", "is_batch"), [("sbatch", True), ("allocation", False), ("local", False)])
def test_only_a_job_that_muster_submitted_is_a_batch_job(kind: str, is_batch: bool) -> None:
    assert Submission(kind=kind).is_batch == is_batch


def test_the_status_of_the_highest_term_counts(run: RunPaths) -> None:
    attempt = run.attempt(0)
    assert newest_published(attempt) is None
    for term in (2, 10, 9):
        write_json(attempt.status(term), {"term": term})
    assert newest_published(attempt) == {"term": 10}
    Path(attempt.status(11)).write_text('{"term": 1')  # never an older one of a fenced leader
    assert newest_published(attempt) is None


def test_the_steps_of_the_job_s_end_are_read_in_order(run: RunPaths) -> None:
    attempt = run.attempt(0)
    assert job_end_marks(attempt) == job_end_marks(run.attempt(7)) == []
    Path(attempt.job_end).write_bytes(b"seen\nended\n\xff\n")
    assert job_end_marks(attempt)[:2] == ["seen", "ended"]
