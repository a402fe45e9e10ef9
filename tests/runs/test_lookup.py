"""The live run that a command acts on."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.conftest import FakeRun

from muster.runs.index import NoSuchRun
from muster.runs.lookup import NoLiveRun, NotRunning, live_run, running_attempt

MakeRun = Callable[..., FakeRun]


def directory_of(run: FakeRun) -> Path:
    return Path(os.path.dirname(run.root))


def test_a_named_run_is_found_whether_or_not_it_is_live(make_run: MakeRun) -> None:
    ended = make_run("old-1").begins().ends(0, "done")
    make_run("new-2").begins()
    assert live_run("old-1", directory_of(ended)).root == ended.root


def test_without_a_name_the_only_live_run_is_meant(make_run: MakeRun) -> None:
    live = make_run("a-1").begins()
    ended = make_run("b-2").begins().ends(0, "done")
    assert live_run(None, directory_of(live)).root == live.root
    live.ends(0, "done")
    with pytest.raises(NoLiveRun, match="no run is live"):
        live_run(None, directory_of(ended))


def test_several_live_runs_are_named_unless_only_one_matches(make_run: MakeRun) -> None:
    runs = [make_run(name).begins() for name in ("a-1", "b-2")]
    with pytest.raises(NoSuchRun, match="several runs are live; name one of a-1, b-2"):
        live_run(None, directory_of(runs[0]))
    chosen = live_run(None, directory_of(runs[0]), lambda run: run.run_id.startswith("b"))
    assert chosen.root == runs[1].root


def test_a_running_attempt_comes_with_its_status(run: FakeRun) -> None:
    run.submitted(job_id="17").begins(0).ends(7, "x").begins(1)
    run.publishes("running", attempt=1, updated=time.time())
    attempt, status = running_attempt(run)
    assert attempt == run.attempt(1) and (status["state"], status["job_id"]) == ("running", "17")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("gathering", "is still gathering as Slurm job 17; `muster status --watch"),
        ("restarting", "is still restarting as Slurm job 17"),
        ("finishing", "is ending"),
        ("failed", "has ended (failed: it broke)"),
    ],
)
def test_a_run_in_another_state_is_refused_with_the_reason(run: FakeRun, state: str, reason: str) -> None:
    run.submitted(job_id="17", time=time.time()).begins().publishes(state, end_reason="it broke", updated=time.time())
    with pytest.raises(NotRunning, match=re.escape(f"{run.run_id} {reason}")):
        running_attempt(run)


def test_a_run_in_the_queue_is_pending(run: FakeRun) -> None:
    run.submitted(kind="local", time=time.time())
    with pytest.raises(NotRunning, match="is pending; `muster status --watch"):
        running_attempt(run)


def test_a_run_whose_job_script_was_killed_has_ended(run: FakeRun) -> None:
    no_process = 4_194_304  # above the largest pid
    run.submitted(kind="local", pid=no_process, host=os.uname().nodename, time=0.0).begins()
    run.publishes("running", updated=0.0)
    with pytest.raises(NotRunning, match=re.escape("has ended (failed: its job script was killed")):
        running_attempt(run)
