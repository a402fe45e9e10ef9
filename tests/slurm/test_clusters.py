"""A job on another cluster (`--sbatch clusters=...`): every Slurm command about it goes to that cluster."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.fake_slurm import FakeSlurm, fake_slurm

from muster.api import RunHandle, submit, submit_array
from muster.launch.exec_step import ExecStep, TargetNode, session_environment
from muster.rundir import RunPaths, read_record, write_json
from muster.runs.array import as_completed
from muster.runs.monitor import RunMonitor, record_silent_end
from muster.runs.release import release, release_all
from muster.runs.removal import plan_removals
from muster.runs.stop import stop_run
from muster.spec import JobSpec

__all__ = ["fake_slurm"]


@pytest.fixture
def job(fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The fields of a job for Slurm, whose commands are the fake ones."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SBATCH_", "MUSTER_")):
            monkeypatch.delenv(name)
    return {
        "command": ["true"],
        "ray": False,
        "nodes": 2,
        "runs_dir": str(tmp_path / "muster-runs"),
        "backend": "slurm",
    }


def submitted(job: dict[str, Any], **fields: Any) -> RunPaths:
    handle: RunHandle = submit(JobSpec(**job, **fields))
    return RunPaths(handle.run_dir)


def clusters_of(calls: list[str]) -> set[str]:
    return {word for call in calls for word in call.split() if word.startswith("--clusters=")}


def test_the_cluster_that_sbatch_chose_is_recorded(job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")  # sbatch would prefer it to the option in the script
    record = read_record(submitted(job, sbatch={"clusters": "east,west"}).submission)
    assert (record["job_id"], record["cluster"]) == ("17", "west")


def test_a_cluster_that_the_user_s_environment_chose_is_recorded_too(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")
    assert read_record(submitted(job).submission)["cluster"] == "elsewhere"


def test_without_a_chosen_cluster_none_is_named(job: dict[str, Any], fake_slurm: FakeSlurm) -> None:
    run = submitted(job)
    fake_slurm.knows("17", "RUNNING", run.script)
    assert read_record(run.submission)["cluster"] is None and RunMonitor(run).query_dead() is None
    assert clusters_of(fake_slurm.calls) == set()


def test_the_jobs_of_a_chain_follow_the_first_to_its_cluster(job: dict[str, Any], fake_slurm: FakeSlurm) -> None:
    """Elsewhere the id that they depend on means another job."""
    run = submitted(job, sbatch={"clusters": "east,west"}, chain=3)
    assert [call.split()[1] for call in fake_slurm.called("sbatch")[1:]] == [
        "--dependency=afterany:17",
        "--dependency=afterany:18",
    ]
    assert all("--clusters=west" in call for call in fake_slurm.called("sbatch")[1:])
    assert read_record(run.submission)["job_ids"] == ["17", "18", "19"]


def test_a_job_of_the_same_id_on_this_cluster_is_never_asked_about_nor_cancelled(
    job: dict[str, Any], fake_slurm: FakeSlurm
) -> None:
    run = submitted(job, sbatch={"clusters": "west"})
    attempt = run.attempt(0)
    os.makedirs(attempt.root)
    write_json(attempt.slurm_job, {"job_id": "17", "restarts": 0})
    write_json(attempt.outcome, {"exit_code": 125, "end_reason": "the leader is gone"})
    os.utime(attempt.outcome, (time.time() - 60, time.time() - 60))
    fake_slurm.knows("17", "RUNNING", run.script)  # a job here with the same id and script
    fake_slurm.knows("17", "COMPLETING", run.script, cluster="west")
    before = len(fake_slurm.calls)
    assert RunMonitor(run).query_dead() is None
    assert release(run) is None and release_all([run]) == []
    stop_run(run, "stopped by alice")
    plan_removals([run], time.time() + 1, 0, False)
    record_silent_end(run, "x")
    asked = [call for call in fake_slurm.calls[before:] if "show config" not in call]
    assert len(asked) >= 4 and all("--clusters=west" in call for call in asked)
    assert fake_slurm.called("scancel") == []
    fake_slurm.knows("17", "RUNNING", run.script, cluster="west")
    stop_run(run, "stopped by alice")
    assert fake_slurm.called("scancel") == ["--clusters=west 17"]


def test_the_tasks_of_an_array_are_asked_about_on_their_cluster(job: dict[str, Any], fake_slurm: FakeSlurm) -> None:
    handles = submit_array(JobSpec(**job, array="0-1", sbatch={"clusters": "west"}))
    runs = [RunPaths(handle.run_dir) for handle in handles]
    for number in (0, 1):
        fake_slurm.knows(f"17_{number}", "CANCELLED", runs[0].script, cluster="west")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muster.runs.array.SLURM_POLL_S", 0.0)
        results = asyncio.run(_all(runs))
    assert sorted(result.end_reason for result in results) == [f"Slurm job 17_{n} is CANCELLED" for n in (0, 1)]
    assert clusters_of(fake_slurm.called("squeue")) == {"--clusters=west"}


async def _all(runs: list[RunPaths]) -> list[Any]:
    return [result async for result in as_completed(runs)]


def test_a_shell_on_a_node_is_a_step_of_the_job_on_its_cluster(tmp_path: Path) -> None:
    run = RunPaths(str(tmp_path))
    entry = ExecStep(run, run.attempt(0), TargetNode(0, "n1", "python3", 1), "17", 0, None, cluster="west")
    assert entry.command(pty=False)[:3] == ["srun", "--clusters=west", "--jobid=17"]
    assert "SLURM_CLUSTERS" not in session_environment({"SLURM_CLUSTERS": "east"}, [])


def test_inside_the_job_no_command_goes_to_the_clusters_that_the_user_submits_to(job: dict[str, Any]) -> None:
    script = Path(submitted(job, sbatch={"clusters": "west"}, chain=2).script).read_text()
    unset = script.index("SLURM_CLUSTERS\n")
    assert unset < script.index("scontrol show hostnames") and unset < script.index("setsid srun")
