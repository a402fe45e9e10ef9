"""`muster run`: what it submits, prints and returns; tests/local and tests/lab run whole jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke, acting, submitted_run
from tests.fake_slurm import FakeSlurm
from tests.runs.conftest import FakeRun

from muster.cli import run as run_module


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_slurm: FakeSlurm) -> Path:
    """The runs directory of the current directory, where sbatch answers with job 17."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "muster-runs"


def test_a_detached_run_prints_both_ids_on_stdout(runs: Path, invoke: Invoke) -> None:
    done = invoke("run", "--detach", "-N", "2", "--", "python", "train.py")
    (run,) = runs.iterdir()
    assert (done.code, done.out) == (0, f"{run.name}\t17\n")
    assert f"run {run.name} as Slurm job 17; run directory: {run}" in done.err
    assert json.loads((run / "job.json").read_text())["command"] == ["python", "train.py"]


def test_a_detached_run_as_json_prints_one_event(runs: Path, invoke: Invoke) -> None:
    (event,) = map(json.loads, invoke("run", "--detach", "--json", "--", "true").out.splitlines())
    (run,) = runs.iterdir()
    assert (event["event"], event["run"], event["job_id"], event["run_dir"]) == ("submitted", run.name, "17", str(run))


def test_a_followed_run_s_output_and_exit_code_are_passed_on(runs: Path, invoke: Invoke) -> None:
    def end(run: FakeRun) -> None:
        run.begins().says("step 1\n").tells("run", state="gathering")
        error = {"rank": 1, "host": "n1", "phase": "ray", "reason": "no GPU", "log_tail": ["last line"]}
        run.publishes("failed", end_reason="node n1 failed", error=error).script_ends().ends(7, "node n1 failed")

    with acting("the submission", lambda: submitted_run(runs), end):
        done = invoke("run", "-N", "3", "--", "true")
    assert (done.code, done.out) == (7, "step 1\n")
    assert "waiting for 3 nodes" in done.err and "failed: node n1 failed (exit code 7)" in done.err
    assert "node n1 (index 1) failed in phase 'ray': no GPU" in done.err and "    | last line" in done.err
    assert "report: " in done.err


def test_an_interrupt_detaches_from_a_submitted_job(
    runs: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, fake_slurm: FakeSlurm
) -> None:
    async def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "follow_run", interrupted)
    done = invoke("run", "--", "true")
    (run,) = runs.iterdir()
    assert done.code == 130 and fake_slurm.called("scancel") == []
    for command in ("logs -f", "status --watch", "stop"):
        assert f"muster {command} {run.name}\n" in done.err


def test_a_dry_run_prints_the_script_and_submits_nothing(runs: Path, invoke: Invoke, fake_slurm: FakeSlurm) -> None:
    done = invoke("run", "--dry-run", "-p", "gpu", "--", "true")
    assert done.code == 0 and done.out.startswith("#!/bin/bash\n") and "#SBATCH --partition=gpu\n" in done.out
    assert not runs.exists() and fake_slurm.called("sbatch") == []


def test_a_dry_run_names_the_command_which_the_script_does_not_have(runs: Path, invoke: Invoke) -> None:
    done = invoke("run", "--dry-run", "-N", "2", "--", "python", "train.py", "--token", "verysecret", "a b")
    told = "muster: dry run; would submit a Slurm job of 2 nodes, with this script, and run: python train.py "
    assert f"{told}--token '***' 'a b'\n" in done.err and "train.py" not in done.out
    here = invoke("run", "--dry-run", "--backend", "local", "--", "true").err
    assert "muster: dry run; would use this machine as 1 node, with this script, and run: true\n" in here


@pytest.mark.parametrize("words", [["run", "--dry-run"], ["render"]])
def test_a_dry_run_as_json_has_script_and_job(words: list[str], runs: Path, invoke: Invoke) -> None:
    done = invoke(*words, "--json", "-N", "2", "--env", "API_KEY=verysecret", "--", "x", "--token", "verysecret")
    plan = json.loads(done.out)
    assert plan.keys() == {"how", "nodes", "run_dir", "job", "script"} and "verysecret" not in done.out
    assert (plan["how"], plan["nodes"], plan["job"]["command"]) == ("sbatch", 2, ["x", "--token", "***"])
    assert plan["script"].startswith("#!/bin/bash\n") and plan["job"]["env"] == ["API_KEY"] and not runs.exists()


def test_every_task_of_an_array_is_a_run_and_the_highest_code_is_returned(runs: Path, invoke: Invoke) -> None:
    def all_submitted() -> list[FakeRun]:
        found = [FakeRun(str(path)) for path in runs.glob("*") if (path / "submission.json").exists()]
        return sorted(found, key=lambda run: run.root) if len(found) == 2 else []

    def end(tasks: list[FakeRun]) -> None:
        for code, task in zip((4, 3), tasks, strict=True):
            task.begins().publishes("failed", end_reason="x").script_ends().ends(code, "x")

    with acting("the submission", all_submitted, end):
        done = invoke("run", "--array", "0-1", "--", "true")
    assert done.code == 4
    assert "as Slurm job 17_0;" in done.err and "as Slurm job 17_1;" in done.err
    assert "failed: x (exit code 3)" in done.err and "failed: x (exit code 4)" in done.err


def test_the_tasks_of_a_detached_array_are_printed(runs: Path, invoke: Invoke) -> None:
    lines = invoke("run", "--array", "0-1", "--detach", "--", "true").out.splitlines()
    assert [line.partition("\t")[2] for line in lines] == ["17_0", "17_1"]
    assert sorted(line.partition("\t")[0] for line in lines) == sorted(path.name for path in runs.iterdir())


def test_a_refused_submission_is_125_and_leaves_no_run(runs: Path, invoke: Invoke, fake_slurm: FakeSlurm) -> None:
    fake_slurm.refuses("sbatch: error: invalid account")
    done = invoke("run", "--", "true")
    assert (done.code, done.out) == (125, "") and "invalid account" in done.err
    assert not runs.exists() or list(runs.iterdir()) == []


def test_a_job_larger_than_the_partition_is_a_mistake(runs: Path, invoke: Invoke) -> None:
    done = invoke("run", "-N", "65", "--", "true")
    assert done.code == 2 and "--nodes 65: the default partition has 64 nodes" in done.err


def test_an_option_of_up_is_refused(runs: Path, invoke: Invoke) -> None:
    done = invoke("run", "--idle-timeout", "30m", "--", "true")
    assert done.code == 2 and "--idle-timeout is for `muster up`: a run with a COMMAND ends with it" in done.err
