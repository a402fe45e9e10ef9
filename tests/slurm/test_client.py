"""Submission and queries from a login node, with Slurm's commands as scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_slurm import FakeSlurm, fake_slurm

from muster.errors import BackendError, SubmissionRefused
from muster.slurm import client
from muster.slurm.client import DEFAULT_KILL_WAIT_S, Queue
from muster.slurm.jobs import QueuedJob, SlurmJobs

__all__ = ["fake_slurm"]


def queued(id: str, state: str = "RUNNING", command: str = "/run/job.sh") -> QueuedJob:
    return QueuedJob(id, state, 0, 1000, 0.0, command)


@pytest.fixture(autouse=True)
def forget_configuration() -> Iterator[None]:
    """Do not leave the answers of the scripts to the tests of other files."""
    yield
    client._config.cache_clear()


@pytest.fixture
def sbatch_environment(fake_slurm: FakeSlurm, tmp_path: Path) -> Path:
    """A file with the environment of the last sbatch."""
    (Path(fake_slurm.path) / "sbatch").write_text(f"#!/bin/sh\nenv >{tmp_path}/env\necho 17\n")
    return tmp_path / "env"


def test_a_submission_returns_the_job_and_the_cluster_that_sbatch_chose(fake_slurm: FakeSlurm) -> None:
    assert client.submit("/job.sh", []) == SlurmJobs(("17",))
    assert client.submit("/job.sh", [], ["--clusters=east,west"], ["2"]) == SlurmJobs(("18",), "west")
    assert fake_slurm.called("sbatch") == ["--parsable /job.sh", "--parsable --clusters=east,west /job.sh 2"]


def test_variables_that_would_override_options_of_the_script_are_removed_and_others_stay(
    sbatch_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = (
        "SBATCH_TIMELIMIT",
        "SBATCH_MEM_PER_NODE",
        "SBATCH_GPUS_PER_NODE",
        "SBATCH_ARRAY_INX",
        "SBATCH_REQ_SWITCH",
    )
    for name in (*removed, "SBATCH_ACCOUNT", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "x")
    client.submit("/job.sh", ["time", "mem", "gpus-per-node"], ["--switches=1"])
    kept = {line.partition("=")[0] for line in sbatch_environment.read_text().splitlines()}
    assert not kept & set(removed) and {"SBATCH_ACCOUNT", "SLURM_CLUSTERS"} <= kept


def test_a_cluster_in_the_script_goes_before_the_user_s_variable(
    sbatch_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "east")
    monkeypatch.setenv("SBATCH_CLUSTERS", "east")
    client.submit("/job.sh", ["clusters"])
    assert "CLUSTERS=" not in sbatch_environment.read_text()


def test_a_refused_submission_is_reported_with_slurm_s_reason(fake_slurm: FakeSlurm) -> None:
    fake_slurm.refuses("sbatch: error: Batch job submission failed: Invalid partition name specified")
    with pytest.raises(
        SubmissionRefused, match=r"^sbatch refused the job: Batch job submission failed: Invalid partition"
    ):
        client.submit("/job.sh", [])


def test_without_sbatch_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match=r"^sbatch could not be run: ") as error:
        client.submit("/job.sh", [])
    assert not isinstance(error.value, SubmissionRefused)  # the job may not exist, but Slurm did not say so


@pytest.mark.parametrize(
    ("ids", "seen", "state"),
    [
        (("17",), [], None),
        (("17",), [queued("17", "PENDING")], "PENDING"),
        (("17", "18"), [queued("17", "COMPLETED"), queued("18", "PENDING")], "PENDING"),
        (("17", "18"), [queued("17", "TIMEOUT"), queued("18", "FAILED")], "FAILED"),
        (("17",), [queued("17+1", "COMPLETED"), queued("17+0", "RUNNING")], "RUNNING"),
        (("17",), [queued("17_1", "RUNNING"), queued("17_2", "PENDING")], "RUNNING"),
    ],
)
def test_the_state_of_several_jobs_is_that_of_the_first_that_has_not_ended(
    ids: tuple[str, ...], seen: list[QueuedJob], state: str | None
) -> None:
    assert client.state_of(SlurmJobs(ids), seen) == state


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ("JobId=17 JobState=COMPLETED Reason=None ExitCode=0:0", 0),
        ("JobId=17 JobState=FAILED Reason=NonZeroExitCode ExitCode=7:0", 7),
        ("JobId=17 JobState=CANCELLED Reason=None ExitCode=0:15", 143),
        ("JobId=17 JobState=FAILED Reason=RaisedSignal ExitCode=0:9", None),
        ("JobId=17 JobState=RUNNING Reason=None ExitCode=0:0", None),
        ("", None),
    ],
)
def test_the_exit_code_of_a_job_that_has_ended(fake_slurm: FakeSlurm, shown: str, code: int | None) -> None:
    fake_slurm.shows(shown)
    assert client.exit_code(SlurmJobs(("16", "17"), "west")) == code
    assert fake_slurm.called("scontrol") == ["--clusters=west --oneliner show job 17"]


@pytest.mark.parametrize(
    ("state", "nodes", "batch_host", "lost"),
    [
        ("RUNNING", "n2,n3", "n1", True),
        ("RUNNING", "n1,n2", "n1", False),
        ("RUNNING", "n10,n2", "n1", True),
        ("COMPLETING", "n2", "n1", False),
    ],
)
def test_a_running_job_without_the_host_of_its_script_has_lost_it(
    fake_slurm: FakeSlurm, state: str, nodes: str, batch_host: str, lost: bool
) -> None:
    fake_slurm.shows(f"JobId=17 JobState={state} ReqNodeList=(null) NodeList={nodes} BatchHost={batch_host} NumNodes=2")
    assert client.has_lost_batch_host(SlurmJobs(("17",))) is lost


def test_a_job_that_has_no_nodes_yet_has_lost_none(fake_slurm: FakeSlurm) -> None:
    fake_slurm.shows("JobId=17 JobState=PENDING NodeList= Command=/job.sh")
    assert not client.has_lost_batch_host(SlurmJobs(("17",)))


@pytest.mark.parametrize(
    ("id", "script", "found"),
    [("17", "/x", True), ("17_9", "/x", True), ("1", "/x", False), ("99", "/run/job.sh", True), ("99", "/run", False)],
)
def test_a_queue_has_a_job_by_id_array_or_script(id: str, script: str, found: bool) -> None:
    queue = Queue((queued("17_3"), queued("18+1", command="/other/job.sh")))
    assert queue.has(id, script) is found


def test_the_queue_is_that_of_this_user_on_the_cluster(fake_slurm: FakeSlurm) -> None:
    fake_slurm.knows("17", "RUNNING", "/run/job.sh", cluster="west")
    assert [job.id for job in client.queue("west").jobs] == ["17"] and client.queue().jobs == ()


def test_the_configuration_is_asked_for_once(fake_slurm: FakeSlurm) -> None:
    assert (client.kill_wait(), client.cluster_here(), client.kill_wait()) == (30.0, "home", 30.0)
    assert fake_slurm.called("scontrol") == ["show config"]


def test_without_an_answer_slurm_s_defaults_count(fake_slurm: FakeSlurm) -> None:
    fake_slurm.refuses("slurm_load_ctl_conf error: Unable to contact slurm controller")
    assert (client.kill_wait(), client.cluster_here()) == (DEFAULT_KILL_WAIT_S, None)


def test_the_configuration_of_a_machine_without_slurm_is_empty(
    fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (client.kill_wait(), client.cluster_here()) == (DEFAULT_KILL_WAIT_S, None)


def test_the_nodes_of_a_partition_are_counted_over_their_states(fake_slurm: FakeSlurm) -> None:
    (Path(fake_slurm.path) / "sinfo").write_text("#!/bin/sh\nprintf 'gpu 3\\ngpu 1\\ncpu* 10\\ncpu* 2\\n'\n")
    assert client.partition_sizes() == {"gpu": 4, "cpu": 12, "": 12}


def test_without_an_answer_no_partition_is_known(fake_slurm: FakeSlurm) -> None:
    fake_slurm.refuses("Unable to contact slurm controller")
    assert client.partition_sizes() == {}


SHOWN = "JobId=17 JobState={state} Reason={reason} Dependency=(null) StartTime={start} EndTime=Unknown"


@pytest.mark.parametrize(
    ("state", "start", "known"), [("PENDING", "2031-05-01T10:20:30", True), ("PENDING", "Unknown", False)]
)
def test_a_pending_job_has_its_reason_and_its_start_if_slurm_knows_it(
    state: str, start: str, known: bool, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.shows(SHOWN.format(state=state, reason="Resources", start=start))
    found = client.pending_job(SlurmJobs(("17",)))
    expected = time.mktime((2031, 5, 1, 10, 20, 30, 0, 0, -1)) if known else None
    assert found == client.PendingJob("Resources", expected)


def test_a_job_that_runs_is_not_pending(fake_slurm: FakeSlurm) -> None:
    fake_slurm.shows(SHOWN.format(state="RUNNING", reason="None", start="2020-01-01T00:00:00"))
    assert client.pending_job(SlurmJobs(("17",))) is None
