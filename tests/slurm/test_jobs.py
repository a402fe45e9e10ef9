"""squeue and scancel: what is asked, what the answers mean, and errors that say why."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fake_slurm import FakeSlurm, fake_slurm

from muster.errors import BackendError
from muster.slurm.jobs import (
    ENDED,
    ENDING,
    WAITING,
    QueuedJob,
    SlurmError,
    SlurmJobs,
    cancel_jobs,
    error_summary,
    list_jobs,
    list_user_jobs,
    parse_squeue,
    run_slurm_command,
)

__all__ = ["fake_slurm"]


def queued(id: str = "17", state: str = "RUNNING", command: str = "/run/job.sh") -> QueuedJob:
    return QueuedJob(id, state, 0, 1000, 0.0, command)


def test_the_line_with_the_cluster_s_name_is_no_job() -> None:
    """Some releases of squeue print it with --clusters, although no header is wanted."""
    line = "17+0      |RUNNING   |2    |1000   |1794855354     |/a|b/job.sh 2      |"
    assert parse_squeue(f"CLUSTER: west\n{line}\n\n") == [
        QueuedJob("17+0", "RUNNING", 2, 1000, 1794855354.0, "/a|b/job.sh 2")
    ]


@pytest.mark.parametrize(
    "line",
    ["", "|", "17|RUNNING|2|1000|1", "17|RUNNING|?|1000|1|/job.sh|", "17|RUNNING|2|alice|1|/job.sh|", "error: x"],
)
def test_a_line_that_is_no_job_is_skipped(line: str) -> None:
    assert parse_squeue(line + "\n") == []


def test_a_job_without_a_submission_time_has_time_zero() -> None:
    (job,) = parse_squeue("17_3|PENDING|0|1000|N/A|/job.sh|\n")
    assert (job.id, job.submitted) == ("17_3", 0.0)


@pytest.mark.parametrize(("id", "submitted"), [("17", "17"), ("17_3", "17_3"), ("17+1", "17")])
def test_the_group_of_a_hetjob_is_not_part_of_the_submitted_id(id: str, submitted: str) -> None:
    assert queued(id).submitted_id == submitted


def test_a_job_holds_nodes_unless_it_waits_ends_or_has_ended() -> None:
    for state in ("RUNNING", "SUSPENDED", "CONFIGURING", "SOMETHING_NEW"):
        assert queued(state=state).holds_nodes
    for state in ENDED | ENDING | WAITING:
        assert not queued(state=state).holds_nodes
    assert not ENDED & ENDING and not ENDED & WAITING and not ENDING & WAITING


def test_a_job_runs_its_script_with_any_arguments() -> None:
    assert queued(command="/run/job.sh").runs("/run/job.sh") and queued(command="/run/job.sh 2").runs("/run/job.sh")
    assert not queued(command="/run/job.sh.old").runs("/run/job.sh")
    assert not queued(command="/other/run/job.sh").runs("/run/job.sh")


def test_jobs_are_named_with_their_cluster() -> None:
    jobs = SlurmJobs(("17", "18"), "west")
    assert str(jobs) == "17, 18 of cluster west" and str(SlurmJobs(("17",))) == "17"
    assert jobs.only(["19"]) == SlurmJobs(("19",), "west")


def test_only_the_named_jobs_are_listed(fake_slurm: FakeSlurm) -> None:
    for id, state in (("17", "RUNNING"), ("18", "PENDING"), ("19", "COMPLETED")):
        fake_slurm.knows(id, state, "/run/job.sh")
    assert [(job.id, job.state) for job in list_jobs(SlurmJobs(("17", "19")))] == [
        ("17", "RUNNING"),
        ("19", "COMPLETED"),
    ]
    (call,) = fake_slurm.called("squeue")
    assert {"--states=all", "--array", "--jobs=17,19"} <= set(call.split())


def test_to_list_no_jobs_asks_nothing(fake_slurm: FakeSlurm) -> None:
    assert list_jobs(SlurmJobs(())) == [] and fake_slurm.calls == []


def test_all_jobs_of_a_user_are_listed_on_the_cluster(fake_slurm: FakeSlurm) -> None:
    fake_slurm.knows("17", "RUNNING", "/a/job.sh")
    fake_slurm.knows("18", "RUNNING", "/b/job.sh", cluster="west")
    assert [job.command for job in list_user_jobs(1000, "west")] == ["/b/job.sh"]
    (call,) = fake_slurm.called("squeue")
    assert call.startswith("--clusters=west ") and "--user=1000" in call


def test_a_job_that_slurm_has_forgotten_is_no_error_and_other_failures_are(fake_slurm: FakeSlurm) -> None:
    fake_slurm.refuses("slurm_load_jobs error: Invalid job id specified")
    assert list_jobs(SlurmJobs(("17",))) == []
    fake_slurm.refuses("slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(SlurmError, match=r"squeue failed: .*Unable to contact slurm controller"):
        list_jobs(SlurmJobs(("17",)))
    with pytest.raises(SlurmError, match=r"squeue failed: .*Unable to contact slurm controller"):
        list_user_jobs(1000)


def test_jobs_are_cancelled_all_or_only_those_that_wait(fake_slurm: FakeSlurm) -> None:
    cancel_jobs(SlurmJobs(("17", "18"), "west"))
    cancel_jobs(SlurmJobs(("19",)), pending_only=True)
    assert fake_slurm.called("scancel") == ["--clusters=west 17 18", "--state=PENDING 19"]
    fake_slurm.refuses("scancel: error: Kill job error on job id 17: Access/permission denied")
    with pytest.raises(SlurmError, match=r"scancel 17 of cluster west failed: .*permission denied"):
        cancel_jobs(SlurmJobs(("17",), "west"))


def test_variables_of_the_user_that_would_change_the_answer_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("SQUEUE_PARTITION", "SCANCEL_INTERACTIVE", "SLURM_CLUSTERS", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    lines = run_slurm_command("squeue").stdout.splitlines()
    assert {line for line in lines if line.startswith(("SQUEUE", "SCANCEL", "SLURM_"))} == {
        "SLURM_CONF=x",
        "SLURM_TIME_FORMAT=%s",
    }


def test_a_command_that_is_missing_or_hangs_is_an_error_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackendError, match=r"no-such-command could not be run: .*No such file"):
        run_slurm_command("no-such-command")
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SlurmError, match=r"squeue could not be run: .*timed out"):
        run_slurm_command("squeue", timeout=0.05)


@pytest.mark.parametrize(
    ("stderr", "summary"),
    [
        ("", "no reason given"),
        ("\n \n", "no reason given"),
        (
            "sbatch: error: Batch job submission failed: Invalid partition\n",
            "Batch job submission failed: Invalid partition",
        ),
        ("one\n\n two \nsbatch: error: three\n", "two; three"),
    ],
)
def test_the_reason_of_a_failure_is_its_last_two_lines(stderr: str, summary: str) -> None:
    assert error_summary(stderr) == summary
