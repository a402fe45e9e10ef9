"""The Python API: jobs, runs that are submitted, followed and stopped, and mistakes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import muster
from muster import api
from muster.errors import Mistake
from muster.runs.follow import Output, RunEvent
from muster.spec import JobSpec, SpecError
from tests.cli.invocation import acting, submitted_run
from tests.fake_slurm import FakeSlurm, fake_slurm
from tests.runs.conftest import FakeRun

__all__ = ["fake_slurm"]

HELPERS = {
    "beat",
    "exclude_node",
    "no_restart",
    "request_restart",
    "section",
    "service",
}  # for drivers, without the API


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_slurm: FakeSlurm) -> Path:
    """The runs directory of the current directory, where sbatch answers with job 17."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "muster-runs"


def end(run: FakeRun, code: int = 7) -> FakeRun:
    """Do what a leader and a job script do at the end of a job whose driver printed a line."""
    run.begins().says("step 1\n").tells("run", state="running")
    return run.publishes("failed", end_reason="x").script_ends().ends(code, "x")


def test_the_package_has_the_names_of_the_api() -> None:
    assert all(getattr(muster, name) is getattr(api, name) for name in api.__all__)
    assert set(api.__all__) == set(muster.__all__) - HELPERS
    with pytest.raises(AttributeError, match="module 'muster' has no attribute 'nothing'"):
        muster.nothing  # noqa: B018


def test_a_job_is_loaded_from_settings_profile_file_and_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.yaml").write_text("partition: cpu\naccount: lab\nprofiles: {gpu: {partition: gpu, qos: high}}\n")
    monkeypatch.setenv("MUSTER_SITE_CONFIG", str(tmp_path / "site.yaml"))
    (tmp_path / "job.yaml").write_text("command: [python, train.py]\nqos: low\nnodes: 2\n")
    spec = api.load_job(str(tmp_path / "job.yaml"), profile="gpu", nodes=3)
    assert (spec.command, spec.nodes) == (["python", "train.py"], 3)
    assert (spec.account, spec.partition, spec.qos) == ("lab", "gpu", "low")
    assert api.load_job(command=["true"]).partition == "cpu"


def test_an_invalid_job_is_a_spec_error() -> None:
    with pytest.raises(SpecError, match="nodes"):
        api.load_job(command=["true"], nodes=0)


def test_planning_a_run_writes_nothing(runs: Path) -> None:
    prepared = api.prepare(JobSpec(command=["true"], nodes=2, backend="local"))
    assert (prepared.target.kind, prepared.target.nodes) == ("local", 2)
    assert prepared.script.startswith("#!") and not runs.exists()


def test_a_submitted_run_has_a_handle_with_its_status(runs: Path) -> None:
    handle = api.submit(JobSpec(command=["true"], name="train"))
    assert (handle.run_dir, handle.job_id) == (str(runs / handle.run), "17")
    status = handle.status()
    assert (status["run"], status["state"], status["job_id"]) == (handle.run, "pending", "17")


def test_waiting_observes_events_and_output_and_returns_the_result(runs: Path) -> None:
    handle = api.submit(JobSpec(command=["true"]))
    end(FakeRun(handle.run_dir))
    observed: list[RunEvent | Output] = []
    result = handle.wait(observed.append)
    assert observed == [Output(b"step 1\n"), RunEvent({"event": "run", "state": "running"})]
    assert (result.run, result.state, result.exit_code, result.end_reason) == (handle.run, "failed", 7, "x")
    assert os.path.exists(FakeRun(handle.run_dir).report)


def test_run_submits_and_waits(runs: Path) -> None:
    with acting("the submission", lambda: submitted_run(runs), end):
        result = api.run(JobSpec(command=["true"]))
    assert (result.exit_code, result.job_id) == (7, "17")


async def test_waiting_works_where_an_event_loop_runs_already(runs: Path) -> None:
    handle = api.submit(JobSpec(command=["true"]))
    end(FakeRun(handle.run_dir), code=3)
    assert asyncio.get_running_loop().is_running()
    assert handle.wait().exit_code == 3


def test_an_error_of_the_observer_is_raised(runs: Path) -> None:
    handle = api.submit(JobSpec(command=["true"]))
    end(FakeRun(handle.run_dir))

    def fail(item: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle.wait(fail)


def test_a_run_that_has_not_begun_is_stopped_by_cancelling_its_job(runs: Path, fake_slurm: FakeSlurm) -> None:
    handle = api.submit(JobSpec(command=["true"]))
    fake_slurm.knows("17", "PENDING", FakeRun(handle.run_dir).script)
    result = handle.stop()
    assert (result.state, result.exit_code) == ("stopped", 143) and "17" in fake_slurm.called("scancel")


def test_an_array_has_a_run_per_task(runs: Path) -> None:
    handles = api.submit_array(JobSpec(command=["true"], array="0-2"))
    assert [handle.job_id for handle in handles] == ["17_0", "17_1", "17_2"]
    assert sorted(handle.run_dir for handle in handles) == sorted(str(path) for path in runs.iterdir())


def test_functions_for_one_run_refuse_an_array_and_the_other_way_round(runs: Path) -> None:
    array, single = JobSpec(command=["true"], array="0-2"), JobSpec(command=["true"])
    for function in (api.run, api.submit):
        with pytest.raises(Mistake, match="a job array has one run per task; use submit_array"):
            function(array)
    with pytest.raises(Mistake, match="this job has no array; use submit"):
        api.submit_array(single)
    assert not runs.exists()


def test_a_refused_job_raises_and_leaves_no_run(runs: Path, fake_slurm: FakeSlurm) -> None:
    fake_slurm.refuses("sbatch: error: invalid account")
    with pytest.raises(muster.BackendError, match="invalid account"):
        api.submit(JobSpec(command=["true"]))
    assert not runs.exists() or list(runs.iterdir()) == []


def test_a_local_run_belongs_to_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    observed: list[RunEvent | Output] = []
    spec = JobSpec(command=["sh", "-c", "echo hello; exit 3"], backend="local", ray=False, python=sys.executable)
    result = api.run(spec, observed.append)
    assert (result.state, result.exit_code, result.job_id) == ("failed", 3, None)
    assert b"".join(item.data for item in observed if isinstance(item, Output)) == b"hello\n"


async def test_the_metrics_file_is_kept_up_to_date_while_a_run_is_followed(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "METRICS_INTERVAL_S", 0.01)
    handle = api.submit(JobSpec(command=["true"]))
    run = FakeRun(handle.run_dir).begins().publishes("running")

    def complete(_: bool) -> FakeRun:
        return run.publishes("succeeded").script_ends().ends(0, "done")

    with acting("the metrics file", lambda: os.path.exists(run.metrics), complete):
        assert (await api.follow_run(run, lambda item: None)).exit_code == 0
