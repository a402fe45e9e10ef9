"""The Slurm job of a finished run is cancelled if it is left over, with few queries to Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.errors import BackendError
from muster.rundir import write_json
from muster.runs import release as releasing
from muster.runs.follow import RunEvent, RunResult, follow
from muster.runs.monitor import RunMonitor, finalize_dead
from muster.runs.release import release, release_all
from muster.runs.stop import stop_run

MakeRun = Callable[..., FakeRun]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releasing, "SETTLE_POLL_S", 0.01)


def over(run: FakeRun, job_id: str = "17", code: int = 125, ago: float = 60.0, **submission: Any) -> FakeRun:
    """A run whose leader has recorded the end, and of whose job script nothing is heard."""
    run.submitted(job_id=job_id, uid=os.geteuid(), **{"asked": time.time(), "time": time.time(), **submission})
    run.begins().publishes("failed", nodes=[{"state": "gone"}])
    write_json(run.attempt(0).leader(), {"rank": 0})
    write_json(run.attempt(0).slurm_job, {"job_id": job_id, "restarts": 0})
    run.ends(code, "the agent of n2 fell silent")
    os.utime(run.attempt(0).outcome, (time.time() - ago, time.time() - ago))
    return run


async def test_after_a_normal_end_slurm_is_asked_nothing(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    over(run, code=7, ago=0.0)
    fake_slurm.knows("17", "RUNNING", run.script)  # for the moment that its script takes to end
    assert isinstance([item async for item in follow(run)][-1], RunResult)
    run.script_ends()
    finalize_dead(run)
    release_all([run])
    assert fake_slurm.calls == []


async def test_a_follower_cancels_the_job_that_its_script_does_not_end(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    fake_slurm.knows("17", "RUNNING", over(run).script)
    *_, told, result = [item async for item in follow(run)]
    assert fake_slurm.called("scancel") == ["17"] and isinstance(result, RunResult)
    assert isinstance(told, RunEvent) and (told.fields["state"], told.fields["job"]) == ("cancelled", "17")


@pytest.mark.parametrize("state", ["COMPLETED", "COMPLETING", "CANCELLED"])
def test_a_job_that_has_ended_is_asked_about_once(run: FakeRun, fake_slurm: FakeSlurm, state: str) -> None:
    fake_slurm.knows("17", state, over(run, submitted_from="home").script)
    for _ in range(3):
        assert release(run) is None
    assert len(fake_slurm.called("squeue")) == 1 and fake_slurm.called("scancel") == []


@pytest.mark.parametrize(
    "job",
    [
        {"script": "/home/ann/muster-runs/other-20260101T000000-0000/job.sh"},
        {"script": "/home/ann/train.sh", "submitted": 1.0},
        {"uid": os.geteuid() + 1},
        {"restarts": 1},
        {"state": "PENDING"},
        {"state": "REQUEUED"},
    ],
    ids=[
        "another run's",
        "another script, at another time",
        "another user's",
        "requeued and started",
        "waits",
        "requeued",
    ],
)
def test_no_other_job_is_cancelled(run: FakeRun, fake_slurm: FakeSlurm, job: dict[str, Any]) -> None:
    over(run)
    fake_slurm.knows("17", **{"state": "RUNNING", "script": run.script, **job})
    assert release(run) is None and release_all([run]) == []
    assert fake_slurm.called("squeue") and fake_slurm.called("scancel") == []


@pytest.mark.parametrize("kind", ["allocation", "local"])
def test_an_allocation_that_the_run_was_started_in_is_never_asked_about(
    run: FakeRun, fake_slurm: FakeSlurm, kind: str
) -> None:
    over(run, kind=kind, pid=1, host="h")
    fake_slurm.knows("17", "RUNNING", run.script)
    assert release(run) is None and release_all([run]) == []
    stop_run(run, "stopped by alice")
    assert fake_slurm.calls == []


def test_a_copy_of_the_script_is_known_by_the_moment_of_its_submission(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    """A site's own sbatch may change the script, and pass it on by another name."""
    over(run)
    fake_slurm.knows("17", "RUNNING", "(null)")
    assert str(release(run)) == "17" and fake_slurm.called("scancel") == ["17"]


def test_a_run_that_has_just_ended_is_left_to_its_job_script(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    fake_slurm.knows("17", "RUNNING", over(run, ago=1.0).script)
    finalize_dead(run)
    assert fake_slurm.calls == []


def test_a_listing_asks_once_for_all_runs_and_then_no_more(make_run: MakeRun, fake_slurm: FakeSlurm) -> None:
    runs = [over(make_run(f"r-{number}"), job_id=str(number), submitted_from="home") for number in range(20, 30)]
    fake_slurm.knows("23", "RUNNING", runs[3].script)
    assert [(run.run_id, str(jobs)) for run, jobs in release_all(runs)] == [("r-23", "23")]
    assert len(fake_slurm.called("squeue")) == 2  # the second only about the one that is left
    release_all(runs)
    assert len(fake_slurm.called("squeue")) == 2


def test_from_another_cluster_nothing_is_recorded_about_a_run_s_job(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    over(run, submitted_from="away")
    assert release(run) is None and release_all([run]) == []
    assert not os.path.exists(run.attempt(0).job_end)


def test_stop_cancels_what_a_finished_run_has_left_and_says_so(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    over(run, code=0)
    fake_slurm.knows("17", "PENDING", run.script, restarts=1)  # put back by hand
    told: list[str] = []
    assert stop_run(run, "stopped by alice", log=told.append).exit_code == 0
    assert told == ["cancelled Slurm job 17"] and fake_slurm.called("scancel") == ["17"]


def test_stop_does_not_pretend_where_slurm_cannot_be_asked(run: FakeRun, fake_slurm: FakeSlurm) -> None:
    over(run)
    fake_slurm.refuses("squeue: error: Unable to contact slurm controller")
    with pytest.raises(BackendError, match="Unable to contact slurm controller"):
        stop_run(run, "stopped by alice")


def test_a_chain_goes_on_when_the_job_of_a_dead_script_is_cancelled(
    run: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script cannot say that the next job follows: Slurm does, once the one before is out of the way."""
    monkeypatch.setattr("muster.runs.monitor.NEXT_ATTEMPT_TIMEOUT_S", 0.0)
    monkeypatch.setattr("muster.runs.monitor.REQUEUE_TIMEOUT_S", 0.0)
    over(run, job_ids=["17", "18"])
    write_json(run.job, {"nodes": 2, "chain": 2})
    fake_slurm.knows("17", "RUNNING", run.script)
    fake_slurm.knows("18", "PENDING", run.script + " 2")
    RunMonitor(run).will_continue(run.attempt(0))
    assert fake_slurm.called("scancel") == ["17"]
    fake_slurm.knows("17", "CANCELLED", run.script)
    assert RunMonitor(run).will_continue(run.attempt(0))


def test_the_user_s_settings_for_slurm_s_commands_change_nothing(
    run: FakeRun, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SQUEUE_PARTITION would hide the job, SCANCEL_INTERACTIVE would ask, SLURM_CLUSTERS is another cluster."""
    names = ("SQUEUE_PARTITION", "SCANCEL_INTERACTIVE", "SLURM_CLUSTERS")
    for name in names:
        monkeypatch.setenv(name, "x")
    for program in ("squeue", "scancel"):
        script = Path(fake_slurm.path) / program
        script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\nenv >>{tmp_path}/seen\n", 1))
    fake_slurm.knows("17", "RUNNING", over(run).script)
    assert release(run) is not None
    seen = (tmp_path / "seen").read_text()
    assert "PATH=" in seen and not any(f"{name}=" in seen for name in names)
