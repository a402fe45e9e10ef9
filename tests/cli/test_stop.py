"""`muster stop`: the run that it ends, what it prints, and when there is nothing to stop."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from tests.cli.invocation import Invoke, StartRun, acting
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.rundir import write_json
from muster.runs.idle import idle_command


def end_when_asked(run: FakeRun) -> Callable[[object], FakeRun]:
    """Return what a leader does after a stop request."""
    return lambda _: run.publishes("stopped", backend="local", end_reason="as requested").ends(143, "as requested")


def test_the_only_live_run_is_stopped_by_a_request_in_its_directory(start_run: StartRun, invoke: Invoke) -> None:
    start_run("over").ends(0, "the driver exited with 0")
    run = start_run("train")
    asked = run.attempt(0).stop_request
    with acting("the request", lambda: os.path.exists(asked), end_when_asked(run)):
        done = invoke("stop")
    assert (done.code, done.out, done.err) == (0, "train: stopped: as requested\n", "")
    assert "stopped by " in json.loads(Path(asked).read_text())["reason"]
    assert os.path.exists(run.report)


def test_a_job_that_has_not_begun_is_cancelled(make_run: StartRun, invoke: Invoke, fake_slurm: FakeSlurm) -> None:
    run = make_run("train")
    run.submitted(job_id="17", job_ids=["17"], uid=os.geteuid(), script=run.script)
    fake_slurm.knows("17", "PENDING", run.script)
    done = invoke("stop", run.root)
    assert set(fake_slurm.called("scancel")) == {"17"}
    first, *_, last = done.out.splitlines()
    assert (first, last) == ("cancelled Slurm job 17", "train: stopped: job 17 was cancelled before it began")


def test_json_is_the_result(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")
    with acting("the request", lambda: os.path.exists(run.attempt(0).stop_request), end_when_asked(run)):
        result = json.loads(invoke("stop", "--json").out)
    assert (result["run"], result["state"], result["exit_code"]) == ("train", "stopped", 143)
    assert invoke("stop", "--json").out == "null\n"


def test_a_cluster_of_up_ends_as_with_down(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("cluster")
    write_json(run.job, {"nodes": 2, "command": idle_command("python3", run)})

    def end(_: object) -> None:
        run.publishes("succeeded", end_reason="the driver exited with 0").ends(0, "the driver exited with 0")

    with acting("the request", lambda: os.path.exists(run.attempt(0).down_request), end):
        assert invoke("stop").out == "cluster: succeeded: the cluster was shut down\n"
    assert not os.path.exists(run.attempt(0).stop_request)


def test_without_a_live_run_it_says_so_and_succeeds(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train").ends(0, "the driver exited with 0")
    done = invoke("stop")
    assert (done.code, done.out) == (0, "no run is live\n")


def test_a_run_that_has_ended_is_reported_as_it_ended(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train").publishes("succeeded", end_reason="the driver exited with 0").ends(0, "the driver exited with 0")
    assert invoke("stop", "train").out == "train: succeeded: the driver exited with 0\n"


def test_several_live_runs_are_not_stopped_without_a_name(start_run: StartRun, invoke: Invoke) -> None:
    runs = [start_run("one"), start_run("two")]
    done = invoke("stop")
    assert done.code == 1 and "several runs are live; name one of one, two" in done.err
    assert not any(os.path.exists(run.attempt(0).stop_request) for run in runs)


def test_an_unknown_run_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    done = invoke("cancel", "other")
    assert done.code == 1 and "no run or job other" in done.err
