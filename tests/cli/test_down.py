"""`muster down`: it ends only clusters that `muster up` started."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.cli.invocation import Invoke, StartRun, acting
from tests.runs.conftest import FakeRun

from muster.rundir import write_json
from muster.runs.idle import idle_command


def idle(run: FakeRun) -> FakeRun:
    write_json(run.job, {"nodes": 2, "command": idle_command("python3", run)})
    return run


def test_the_only_idle_cluster_ends_with_success(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    run = idle(start_run("cluster"))
    request = run.attempt(0).down_request

    def end(_: object) -> None:
        run.publishes("succeeded", end_reason="the driver exited with 0").ends(0, "the driver exited with 0")

    with acting("the request", lambda: os.path.exists(request), end):
        done = invoke("down")
    assert (done.code, done.out) == (0, "cluster: succeeded: the cluster was shut down\n")
    assert "stopped by " in json.loads(Path(request).read_text())["reason"]
    assert os.path.exists(run.report)


def test_a_run_with_a_driver_is_refused_with_the_command_that_ends_it(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")
    done = invoke("down", "train")
    assert done.code == 1 and "train was not started with `muster up`; end it with: muster stop train" in done.err
    assert not os.path.exists(run.attempt(0).down_request)


def test_without_a_cluster_it_says_so_and_succeeds(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    done = invoke("down")
    assert (done.code, done.out) == (0, "no cluster is up\n")
    assert invoke("down", "--json").out == "null\n"


def test_several_clusters_are_named(start_run: StartRun, invoke: Invoke) -> None:
    idle(start_run("one"))
    idle(start_run("two"))
    done = invoke("down")
    assert done.code == 1 and "name one of one, two" in done.err


def test_an_unknown_cluster_is_refused(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    done = invoke("down", "other")
    assert done.code == 1 and "no run or job other" in done.err
