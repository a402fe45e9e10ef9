"""`muster up`: the idle cluster that it submits, when it returns, and interrupts."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.invocation import Invoke, acting, submitted_run
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.cli import up
from muster.runs.idle import is_idle_cluster


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_slurm: FakeSlurm) -> Path:
    """The runs directory of the current directory, where sbatch answers with job 17."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "muster-runs"


def test_a_detached_cluster_has_the_idle_driver_and_no_stall_timeout(runs: Path, invoke: Invoke) -> None:
    words = ["--stall-timeout", "5m", "--procs-per-node", "2", "--idle-timeout", "30m"]
    done = invoke("up", "--detach", "-N", "2", *words)
    (root,) = runs.iterdir()
    assert (done.code, done.out) == (0, f"{root.name}\t17\n")
    job = json.loads((root / "job.json").read_text())
    assert is_idle_cluster(FakeRun(str(root)))
    assert (job["stall_timeout"], job["procs_per_node"], job["idle_timeout"]) == (None, None, 1800.0)


def test_it_returns_when_the_cluster_is_ready_and_says_how_to_use_it(runs: Path, invoke: Invoke) -> None:
    def become_ready(run: FakeRun) -> None:
        run.begins().tells("run", state="starting").tells("driver_start", command=["idle"])

    with acting("the submission", lambda: submitted_run(runs), become_ready):
        done = invoke("up", "-N", "2", "--no-ray")
    (root,) = runs.iterdir()
    assert (done.code, done.out) == (0, f"{root.name}\t17\n")
    assert "all 2 nodes arrived" in done.err and "ready: 2 nodes" in done.err
    assert f"muster attach {root.name} " in done.err and f"muster down {root.name} " in done.err


def test_a_cluster_that_fails_to_start_prints_its_output_and_returns_its_code(runs: Path, invoke: Invoke) -> None:
    def fail(run: FakeRun) -> None:
        run.begins().says("no Ray here\n").publishes("failed", end_reason="x").script_ends().ends(125, "x")

    with acting("the submission", lambda: submitted_run(runs), fail):
        done = invoke("up")
    assert (done.code, done.out) == (125, "no Ray here\n") and "failed: x (exit code 125)" in done.err


def test_an_interrupt_during_the_submission_prints_the_run_that_was_submitted(
    runs: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = up.submit_prepared

    def interrupted(prepared: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return submit(prepared)

    monkeypatch.setattr(up, "submit_prepared", interrupted)
    before = signal.getsignal(signal.SIGINT)
    done = invoke("up")
    (root,) = runs.iterdir()
    assert (done.code, done.out) == (130, "") and signal.getsignal(signal.SIGINT) is before
    assert "Detached; the cluster is still starting and continues." in done.err
    assert f"muster status --watch {root.name}\n" in done.err and f"muster down {root.name}\n" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--", "python", "train.py"], "`muster up` takes no COMMAND; run it on the cluster with `muster run --in RUN"),
        (["--array", "0-1"], "`muster up` brings one cluster up; --array is for `muster run`"),
        (["-N", "65"], "--nodes 65: the default partition has 64 nodes"),
    ],
)
def test_what_does_not_fit_a_cluster_is_refused(words: list[str], told: str, runs: Path, invoke: Invoke) -> None:
    done = invoke("up", *words)
    assert (done.code, done.out) == (2, "") and told in done.err
    assert not runs.exists() or list(runs.iterdir()) == []


def test_the_usage_has_no_command(invoke: Invoke) -> None:
    assert invoke("up", "--help").out.startswith("Usage: muster up [OPTIONS]\n")


def test_the_short_help_has_the_options_of_clusters(invoke: Invoke) -> None:
    short = invoke("up", "--help").out
    assert "--idle-timeout" in short and "--dashboard" in short and "--stall-timeout" not in short
    assert "--stall-timeout" in invoke("up", "--help-all").out
