"""The end of a run on a real Slurm has a reason: stopped or failed, which node, and what happened to it."""

from __future__ import annotations

import pytest
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

from muster.rundir import read_json

HARMLESS = "lacks support for cpu binding"


def cancelled(slurm: SlurmCommand) -> None:
    (job,) = slurm.slurm("squeue", "--noheader", "--format=%A").stdout.split()
    slurm.slurm("scancel", job)


@pytest.mark.parametrize("file", ["steps.log", "hosts", "nodes/0000.alive", "nodes/0001.json", "lead-0.json"])
def test_a_job_cancelled_while_its_agents_start_is_stopped(slurm: SlurmCommand, file: str) -> None:
    process = slurm.start(*slurm.run_args("--", "sleep", "1000", nodes=3))
    wait_for(file, lambda: list(slurm.cwd.glob(f"muster-runs/*/attempt-0/{file}")))
    cancelled(slurm)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "stopped: the job received SIGTERM" in err and "failed in phase" not in err and HARMLESS not in err


@pytest.mark.parametrize("how", ["scancel", "stop"])
def test_a_stop_during_setup_blames_no_node(slurm: SlurmCommand, how: str) -> None:
    process = slurm.start(*slurm.run_args("--setup", "sleep 1000", "--", "true", nodes=2))
    slurm.wait_for_set_up(nodes=2)
    if how == "scancel":
        cancelled(slurm)
    else:
        slurm("stop")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert "failed in phase" not in err and HARMLESS not in err and "--setup" not in err
    assert ("the job received SIGTERM" if how == "scancel" else "stopped by") in err
    status = slurm.status()
    assert (status["state"], status["error"]) == ("stopped", None)


def test_the_loss_of_the_leader_s_host_is_one_sentence_that_names_it(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args("--", "bash", "-c", "echo runs; sleep 1000", nodes=3))
    slurm.wait_for_driver("runs")
    leader = slurm.hosts()[0]
    with slurm.lost(leader):
        _, err = process.communicate(timeout=150)
        assert process.returncode == 125
        assert f"failed: the leader {leader} is gone: its connection ended (exit code 125)" in err
        assert HARMLESS not in err
        wait_for("the nodes to be free", lambda: not slurm.slurm("squeue", "-h", "-t", "RUNNING").stdout)


def test_a_node_whose_setup_failed_is_replaced_and_the_reason_is_printed(slurm: SlurmCommand) -> None:
    setup = "[ $MUSTER_RANK != 1 ] || exit 3"
    done = slurm.run("--spares", "1", "--setup", setup, "--", "true", nodes=2)
    assert done.returncode == 0, done.stderr
    assert f"node {slurm.hosts()[1]} (index 1) failed in phase 'start': --setup" in done.stderr


def test_a_job_that_reached_its_time_limit_says_so(slurm: SlurmCommand) -> None:
    """Slurm looks at its limits every 30 s."""
    process = slurm.start(*slurm.run_args("--time", "10", "--", "bash", "-c", "echo runs; sleep 1000", nodes=2))
    slurm.wait_for_driver("runs")
    job = slurm.status()["job_id"]
    ends_now = ("scontrol", "update", f"jobid={job}", "endtime=now")
    wait_for("Slurm to take the limit", lambda: slurm.slurm(*ends_now).returncode == 0)
    _, err = process.communicate(timeout=150)
    assert "stopped: the job received SIGTERM: time limit" in err
    assert slurm.status()["end_reason"] == "the job received SIGTERM: time limit"
    assert read_json(str(slurm.run_dir() / "attempt-0" / "outcome"))["end_reason"].endswith("time limit")


def test_without_requeue_on_slurm_does_not_run_the_driver_twice(slurm: SlurmCommand) -> None:
    """Slurm would requeue a job of one node that has failed."""
    process = slurm.start(*slurm.run_args("--", "bash", "-c", "echo runs; sleep 1000", nodes=1))
    slurm.wait_for_driver("runs")
    job = slurm.status()["job_id"]
    with slurm.lost(slurm.hosts()[0]):
        _, err = process.communicate(timeout=150)
        assert process.returncode != 0 and "NODE_FAIL" in err
        assert slurm.job(job)["Restarts"] == "0" and slurm.job(job)["JobState"] == "NODE_FAIL"
