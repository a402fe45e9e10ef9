"""Dead runs: Slurm is queried rarely, and an end that the run did not record is recorded once it is known."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from tests.fake_slurm import FakeSlurm
from tests.running import wait_for
from tests.runs.conftest import FakeRun

from muster.rundir import read_json, write_json
from muster.runs import monitor
from muster.runs.monitor import RunMonitor, finalize_dead


def test_frequent_polls_of_a_pending_job_query_slurm_rarely(
    run: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RunMonitor(run.submitted(job_id="4711", time=0.0))
    fake_slurm.knows("4711", "PENDING", run.script)
    now = [monitor.time.monotonic()]
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now[0])
    for _ in range(1200):  # ten minutes of `muster status --watch`
        now[0] += 0.5
        watch.poll_dead(None)
    assert 0 < len(fake_slurm.calls) <= 600 / monitor.SLURM_POLL_S + 2


def test_a_job_that_dies_before_it_writes_anything_is_noticed_after_seconds(
    run: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RunMonitor(run.submitted(job_id="4711", time=0.0))
    now = monitor.time.monotonic() + 6.0
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now)
    fake_slurm.knows("4711", "CANCELLED", run.script)
    assert watch.poll_dead(None) == "Slurm job 4711 is CANCELLED"


def test_a_new_job_may_be_unknown_to_slurm_for_some_seconds(
    run: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RunMonitor(run.submitted(job_id="4711", time=0.0))
    now = [monitor.time.monotonic() + 6.0]
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now[0])
    assert watch.poll_dead(None) is None and len(fake_slurm.called("squeue")) == 1
    now[0] += monitor.SLURM_POLL_S
    assert watch.poll_dead(None) == "Slurm job 4711 is unknown to Slurm"


def test_a_job_that_failed_without_a_file_may_have_an_unshared_runs_directory(
    run: FakeRun, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.knows("4711", "FAILED", run.script)
    dead = RunMonitor(run.submitted(job_id="4711", time=0.0)).query_dead()
    assert dead is not None and "every node shares" in dead and run.root in dead
    assert "the nodes may not see this directory" in dead and "--runs-dir" in dead
    run.begins()
    assert RunMonitor(run).query_dead() == "Slurm job 4711 is FAILED"


def test_a_job_that_was_cancelled_while_pending_is_recorded_as_ended(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    run.submitted(job_id="4711", time=0.0)
    fake_slurm.knows("4711", "CANCELLED", run.script)
    finalize_dead(run)
    finalize_dead(run)
    assert len(fake_slurm.called("squeue")) == 1
    assert read_json(run.attempt(0).outcome) == {"exit_code": 125, "end_reason": "Slurm job 4711 is CANCELLED"}


def test_a_run_that_was_just_submitted_is_not_finalized(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    finalize_dead(run.submitted(job_id="4711", time=monitor.time.time()))
    assert fake_slurm.calls == []


def test_a_job_of_another_run_with_the_same_id_says_nothing_about_this_one(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    """slurmctld lost its state, and counts from 1 again."""
    fake_slurm.knows("4711", "RUNNING", "/home/ann/muster-runs/other/job.sh")
    finalize_dead(run.submitted(job_id="4711", time=0.0))
    assert read_json(run.attempt(0).outcome)["end_reason"] == "Slurm job 4711 is unknown to Slurm"


def test_from_another_cluster_a_run_is_not_taken_for_ended(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    """Two clusters share a home; this one's slurmctld does not know the other one's jobs."""
    finalize_dead(run.submitted(job_id="4711", time=0.0, submitted_from="away"))
    assert len(fake_slurm.called("squeue")) == 1 and run.newest_attempt() is None


def test_a_silent_job_that_has_lost_its_batch_host_is_cancelled_and_recorded_as_failed(
    run: FakeRun, fake_slurm: FakeSlurm
) -> None:
    """Every agent died with the batch host: nothing is left that could end the job."""
    long_ago = time.time() - 2 * monitor.ABANDONED_S
    run.submitted(job_id="4711", time=long_ago).begins().publishes("running", updated=long_ago)
    write_json(run.attempt(0).slurm_job, {"job_id": "4711", "restarts": 0})
    fake_slurm.knows("4711", "RUNNING", run.script)
    fake_slurm.shows("JobId=4711 JobState=RUNNING NodeList=n1,n2 BatchHost=n1 NumNodes=2")
    finalize_dead(run)
    assert not os.path.exists(run.attempt(0).outcome) and fake_slurm.called("scancel") == []
    fake_slurm.shows("JobId=4711 JobState=RUNNING NodeList=n2,n3 BatchHost=n1 NumNodes=2")
    finalize_dead(run)
    assert fake_slurm.called("scancel") == ["4711"]
    assert "Slurm job 4711 lost its batch host" in read_json(run.attempt(0).outcome)["end_reason"]


def test_a_job_script_that_has_ended_and_was_not_waited_for_does_not_run() -> None:
    script = subprocess.Popen(["true"])
    try:
        wait_for("its end", lambda: not monitor._exists(script.pid))
        assert monitor._exists(os.getpid())
    finally:
        script.wait()
