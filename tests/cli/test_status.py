"""`muster status`: the state of a run as lines and as JSON, once or until its end."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from tests.cli.invocation import Invoke, StartRun
from tests.fake_slurm import FakeSlurm

from muster.cli import status
from muster.rundir import write_json
from muster.runs.idle import idle_command

REQUEST = {
    "cycle": 1,
    "rank": 0,
    "host": "n0",
    "kind": "exclude_node",
    "reason": "bad memory",
    "at_once": True,
    "process_rank": 3,
}
READY = {"rank": 0, "host": "n0", "state": "ready", "url": "http://n0:80", "restarts": 0}
STARTING = {**READY, "state": "starting", "url": None}


def test_an_idle_cluster_has_no_driver(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")
    write_json(run.job, {"command": idle_command("python3", run)})
    lines = invoke("status").out.splitlines()
    assert "  cluster is up; it has no driver" in lines and not any("driver running" in line for line in lines)


def test_a_cluster_that_has_ended_has_neither_a_driver_nor_an_address(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train", ray={"address": "n0:6379", "dashboard": None, "tuning": {}})
    write_json(run.job, {"command": idle_command("python3", run)})
    run.ends(0, "the driver exited with 0")
    shown = invoke("status").out
    assert "  ended: the cluster was shut down\n" in shown
    assert "driver exited" not in shown and "Ray at" not in shown


def test_a_running_run_is_shown_with_its_nodes_and_its_directory(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train", hosts=("n1", "n2", "n3"))
    done = invoke("status")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "train: running (local)",
        "  nodes ready: 3 (n[1-3])",
        "  driver running",
        "  not started",
        f"  directory {run.root}",
    ]


def test_json_is_one_object(start_run: StartRun, invoke: Invoke) -> None:
    start_run("train")
    shown = json.loads(invoke("status", "train", "--json").out)
    assert (shown["run"], shown["state"], shown["backend"]) == ("train", "running", "local")


def test_a_failure_is_shown_with_its_log_lines_and_without_control_characters(
    start_run: StartRun, invoke: Invoke
) -> None:
    error = {"rank": 1, "host": "n1", "phase": "ray", "reason": "no GPU", "log_tail": ["first", "bad \x1b[2J"]}
    timings = {"job_start": 100.0, "driver_start": 103.5}
    start_run("train", error=error, timings=timings).ends(1, "node n1 failed")
    lines = invoke("status").out.splitlines()
    assert "  ended: node n1 failed" in lines and "  error: n1 in phase ray: no GPU" in lines
    assert lines[lines.index("    | first") + 1].startswith("    | bad ") and "\x1b" not in "".join(lines)
    assert "  since job start: driver start 3.5 s" in lines


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"waiting": "waiting for a leader"}, "  waiting for a leader"),
        (
            {"cycles": [{"cycle": 80, "reason": None}], "cycles_dropped": 80},
            "  80 earlier cycles: see `muster report` ",
        ),
        ({"cycles": [{"cycle": 0, "reason": "n1 was lost"}, {"cycle": 1, "reason": None}]}, "  cycle 0 ended: n1 was "),
        ({"guests": [{"id": "g1", "state": "ended", "exit_code": 3}]}, "  guest g1 ended, exit code 3"),
        ({"driver": {"state": "ended", "exit_code": 7}}, "  driver ended, exit code 7"),
        ({"ray": {"address": "n0:6379", "dashboard": None, "tuning": {}}}, "  Ray at n0:6379"),
        (
            {"ray": {"address": "a:1", "dashboard": {"host": "n0", "port": 8265}, "tuning": {"RAY_x": "1"}}},
            "  Ray at a:1, dashboard on n0:8265\n  not started",
        ),
        (
            {"ray": {"address": "a:1", "dashboard": None, "gcs_restarts": 2, "tuning": {}}},
            "  Ray at a:1, control service restarted 2 times",
        ),
        (
            {"requests": [REQUEST, {**REQUEST, "at_once": False, "process_rank": None}]},
            "  cycle 1: rank 3 on n0 requested exclude_node: bad memory\n"
            "  cycle 1: n0 requested exclude_node at the next restart: bad memory",
        ),
        (
            {"services": {"web": {"ready": 2, "wanted": 3, "instances": [READY, READY, STARTING]}}},
            "  service web: 2 of 3 ready at http://n0:80 and 1 more",
        ),
        ({"nodes": [{"rank": 0, "host": "n0", "state": "idle", "role": "spare"}]}, "  spare: 1 (n0)"),
        (
            {"nodes": [{"rank": 0, "host": "n0", "state": "idle", "healthy": False, "ailment": "hot"}]},
            "  unhealthy: n0: hot",
        ),
    ],
)
def test_what_applies_to_a_run_has_a_line(
    fields: dict[str, Any], line: str, start_run: StartRun, invoke: Invoke
) -> None:
    start_run("train", **fields)
    assert f"\n{line}" in invoke("status").out


def test_an_attempt_that_another_follows_is_explained(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train", "slurm").ends(143, "the time limit")
    write_json(run.attempt(0).next_attempt, {"again": "requeue", "cause": "timeout", "note": ""})
    out = invoke("status").out
    assert out.startswith("train: pending (slurm, Slurm job 17)\n")
    assert "  attempt 0 ended (the time limit): put back into the queue after timeout" in out


def test_a_pending_job_has_slurm_s_reason_and_its_expected_start(
    make_run: StartRun, invoke: Invoke, fake_slurm: FakeSlurm
) -> None:
    run = make_run("train")
    run.submitted(job_id="17", job_ids=["17"], uid=os.geteuid(), script=run.script, time=time.time())
    fake_slurm.shows("JobId=17 JobState=PENDING Reason=Priority StartTime=2099-01-02T03:04:05 EndTime=Unknown")
    told = "Slurm job 17 is pending: Priority; expected start 2099-01-02 03:04"
    assert f"\n  {told}\n" in invoke("status", run.root).out
    assert json.loads(invoke("status", run.root, "--json").out)["waiting"] == told
    assert len(fake_slurm.called("scontrol")) == 1


def test_a_run_that_ended_gets_its_report(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train").ends(0, "the driver exited with 0")
    assert not os.path.exists(run.report)
    assert invoke("status").code == 0
    assert os.path.exists(run.report)


def test_watching_prints_every_change_until_the_end(
    start_run: StartRun, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_run("train")
    changes = iter(["none", "finishing", "ended"])

    def next_change(seconds: float) -> None:
        change = next(changes)
        if change == "finishing":
            run.publishes("finishing", backend="local")
        elif change == "ended":
            run.publishes("stopped", backend="local").ends(143, "stopped by ann")

    monkeypatch.setattr(status.time, "sleep", next_change)
    done = invoke("status", "--watch")
    states = [line for line in done.out.splitlines() if line.startswith("train: ")]
    assert states == ["train: running (local)", "train: finishing (local)", "train: stopped (local)"]


def test_watching_a_run_whose_process_is_killed_ends(start_run: StartRun, invoke: Invoke) -> None:
    run = start_run("train")
    dead = 2**22 + 1  # beyond the largest process id
    run.submitted(kind="local", backend="local", pid=dead, host=os.uname().nodename, time=10**10)
    done = invoke("status", "--watch")
    assert done.code == 0 and "ended: its job script was killed" in done.out


def test_a_job_that_still_holds_nodes_is_cancelled_and_named(
    start_run: StartRun, invoke: Invoke, fake_slurm: FakeSlurm
) -> None:
    run = start_run("train", "slurm").publishes("failed", nodes=[], backend="slurm").ends(125, "lost")
    write_json(run.attempt(0).slurm_job, {"job_id": "17", "restarts": 0})
    os.utime(run.attempt(0).outcome, (1, 1))
    fake_slurm.knows("17", "RUNNING", run.script)
    done = invoke("status")
    assert fake_slurm.called("scancel") == ["17"]
    assert done.err == "muster: train has ended but still held nodes: cancelled Slurm job 17\n"
