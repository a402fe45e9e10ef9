"""`muster runs`: one line per run, oldest first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.cli.invocation import Invoke, StartRun
from tests.fake_slurm import FakeSlurm

from muster.cli import runs
from muster.cli.runs import COMMAND_WIDTH
from muster.rundir import RunPaths, write_json
from muster.runs.idle import idle_command
from muster.runs.index import NoSuchRun


def test_runs_are_listed_oldest_first_with_state_nodes_job_and_exit_code(start_run: StartRun, invoke: Invoke) -> None:
    start_run("first", "slurm").publishes("failed").ends(7, "the driver exited with 7").script_ends()
    start_run("second")
    done = invoke("runs")
    header, first, second = (line.split() for line in done.out.splitlines())
    assert header == ["run", "state", "nodes", "job", "exit", "began", "command"]
    assert first[:5] == ["first", "failed", "2", "17", "7"]
    assert second[:5] == ["second", "running", "2", "-", "-"]


def test_a_command_is_shortened_and_its_secrets_are_hidden(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")
    write_json(run.job, {"nodes": 1, "command": ["python", "--token", "verysecret", "x" * 200]})
    line = invoke("runs").out.splitlines()[1]
    assert "python --token *** xxx" in line and "verysecret" not in line
    assert len(line.rstrip().rpartition("python")[2]) == COMMAND_WIDTH - len("python")


def test_a_cluster_of_up_has_no_command(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("cluster")
    write_json(run.job, {"nodes": 2, "command": idle_command("python3", run)})
    assert invoke("runs").out.splitlines()[1].endswith("(muster up)")


def test_a_run_stays_on_one_line_for_programs(make_run: StartRun, invoke: Invoke, tmp_path: Path) -> None:
    make_run("long-" * 20)
    assert len(invoke("runs", "--runs-dir", str(tmp_path / "muster-runs")).out.splitlines()) == 2


def test_without_runs_only_the_header_is_printed(tmp_path: Path, invoke: Invoke) -> None:
    done = invoke("runs", "--runs-dir", str(tmp_path))
    assert done.code == 0 and len(done.out.splitlines()) == 1


def test_a_job_that_still_holds_nodes_is_cancelled_and_named(
    start_run: StartRun, invoke: Invoke, fake_slurm: FakeSlurm
) -> None:
    run = start_run("train", "slurm").publishes("failed", nodes=[]).ends(125, "lost")
    write_json(run.attempt(0).slurm_job, {"job_id": "17", "restarts": 0})
    os.utime(run.attempt(0).outcome, (1, 1))
    fake_slurm.knows("17", "RUNNING", run.script)
    done = invoke("runs")
    assert done.err == "muster: train has ended but still held nodes: cancelled Slurm job 17\n"
    assert fake_slurm.called("scancel") == ["17"]


def test_private_runs_of_other_users_are_counted(
    start_run: StartRun, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_run("train")
    monkeypatch.setattr(runs, "private_runs", lambda _: [Path("a"), Path("b")])
    done = invoke("runs")
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    assert done.err == "muster: 2 more in the runs directory cannot be read: runs are private\n"


def test_a_runs_directory_that_cannot_be_read_is_an_error(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path | None) -> list[RunPaths]:
        raise NoSuchRun("the runs directory /x cannot be read: Permission denied")

    monkeypatch.setattr(runs, "all_runs", refuse)
    done = invoke("runs")
    assert (done.code, done.err) == (1, "muster: error: the runs directory /x cannot be read: Permission denied\n")


def test_runs_are_printed_as_one_json_list(runs_dir: Path, invoke: Invoke) -> None:
    done = invoke("runs", "--json")
    old, young = json.loads(done.out)
    assert [old["run"], young["run"]] == ["old", "young"]
    assert (old["exit_code"], old["nodes"], old["job_id"], old["command"]) == (0, 1, None, [])
    assert old["run_dir"] == str(runs_dir / "old") and old["began"] < young["began"]
    assert json.loads(invoke("runs", "--json", "--runs-dir", "/nonexistent").out) == []
