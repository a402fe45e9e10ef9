"""Runs handle scancel in every phase, a requeue during the start, wrong clocks and a vanished run directory."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand
from tests.lab.hiding import hidden
from tests.running import wait_for

from muster.rundir import RunPaths
from muster.runs.monitor import record_silent_end

LAB = {"nodes": 2, "kill_wait": 5}

BLOCKED = ("--setup", "[ $SLURMD_NODENAME != n2 ] || [ -e go ] || sleep 1000")
SAVES = "trap 'echo saving; sleep 1; exit 9' TERM; echo ready; while :; do read -rt 0.1 < <(:); done"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def wait_for_phase(slurm: SlurmCommand, word: str) -> str:
    """Until the run's phases say this; returns its job id."""
    paths = lambda: list(slurm.cwd.glob("muster-runs/*/attempt-0/phases.log"))  # noqa: E731
    wait_for(f"phase {word}", lambda: any(word in path.read_text() for path in paths()))
    return str(slurm.status()["job_id"])


def cancelled(slurm: SlurmCommand, process: subprocess.Popen[str], job_id: str) -> None:
    """scancel, until all is over; Slurm itself would kill what is left after KillWait."""
    began = time.monotonic()
    slurm.slurm("scancel", job_id)
    process.communicate(timeout=180)
    print(f"ended {time.monotonic() - began:.1f} s after scancel (KillWait {LAB['kill_wait']} s)")
    slurm.ended_job(job_id)


@pytest.mark.slow
def test_scancel_while_pending(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args("--sbatch", "begin=now+1hour", "--", "true", nodes=2))
    job_id = wait_for("the job", lambda: slurm.slurm("squeue", "-h", "-o", "%A").stdout.strip())
    slurm.slurm("scancel", job_id)
    process.communicate(timeout=120)  # Slurm is asked every 30 s while a job is pending
    assert process.returncode == 143


def test_scancel_while_nodes_gather(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args(*BLOCKED, "--", "true", nodes=2))
    cancelled(slurm, process, wait_for_phase(slurm, "gathering"))
    assert process.returncode == 143


@pytest.mark.ray
def test_scancel_while_ray_starts(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args("--", "true", nodes=2, ray=True))
    cancelled(slurm, process, wait_for_phase(slurm, "starting"))
    assert process.returncode == 143


def test_scancel_while_the_driver_runs_and_again_while_it_ends(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args("--", "bash", "-c", SAVES, nodes=2))
    job_id = wait_for_phase(slurm, "running")
    slurm.wait_for_driver("ready")
    slurm.slurm("scancel", job_id)
    slurm.wait_for_driver("saving")
    cancelled(slurm, process, job_id)
    assert process.returncode == 9


def test_a_requeue_while_starting_begins_anew_and_reads_nothing_of_the_first(slurm: SlurmCommand) -> None:
    args = slurm.run_args("--sbatch", "requeue", *BLOCKED, "--", "bash", "-c", "echo attempt $MUSTER_ATTEMPT", nodes=2)
    process = slurm.start(*args)
    job_id = wait_for_phase(slurm, "gathering")
    (slurm.cwd / "go").touch()
    assert slurm.slurm("scontrol", "requeue", job_id).returncode == 0
    wait_for("the job to be pending again", lambda: slurm.job(job_id)["JobState"] == "PENDING")
    slurm.slurm("scontrol", "update", f"jobid={job_id}", "starttime=now+2")  # Slurm would wait two minutes
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "attempt 1\n"), err
    assert not (slurm.run_dir() / "attempt-1" / "stop.json").exists()


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime")
def test_a_clock_that_is_an_hour_ahead_does_no_harm(slurm: SlurmCommand) -> None:
    ahead = f"[ $SLURMD_NODENAME != n2 ] || export LD_PRELOAD={FAKETIME} FAKETIME=+1h"
    done = slurm.run("--setup", ahead, "--", "echo", "well", nodes=2)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
    arrived = [(slurm.run_dir() / "attempt-0" / "nodes" / f"000{rank}.json").read_text() for rank in (0, 1)]
    times = [float(text.partition('"time": ')[2].split("}")[0].split(",")[0]) for text in arrived]
    assert times[1] - times[0] > 3000  # it really was ahead


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime")
def test_a_leader_whose_clock_is_an_hour_behind_does_no_harm(slurm: SlurmCommand) -> None:
    behind = f"[ $SLURMD_NODENAME != n1 ] || export LD_PRELOAD={FAKETIME} FAKETIME=-1h"
    done = slurm.run("--setup", behind, "--", "bash", "-c", "exit 6", nodes=2)
    assert done.returncode == 6, done.stderr
    assert slurm.status()["state"] == "failed"


@pytest.mark.parametrize(("node", "code"), [("n2", 5), ("n1", 6)])
def test_a_run_directory_that_vanishes_under_a_run_costs_the_view_not_the_run(
    slurm: SlurmCommand, node: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = Path(slurm.lab.plan.state_dir) / "shared" / f"go-{slurm.cwd.name}"
    driver = f"echo ready; until [ -e {mark} ]; do read -rt 0.1 < <(:); done; exit {code}"
    slurm(*slurm.run_args("--detach", "--", "bash", "-c", driver, nodes=2))
    run = slurm.wait_for_driver("ready")
    job_id = slurm.status()["job_id"]
    with hidden(slurm, node, run.parent):
        mark.touch()
        ended = slurm.ended_job(job_id)
    assert ended["ExitCode"] == f"{code}:0"
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    if not (run / "attempt-0" / "outcome").exists():  # what whoever follows the run does after a while of silence
        record_silent_end(RunPaths(str(run)), "silent")
    assert slurm.status()["exit_code"] == code


def test_muster_run_can_be_interrupted_at_once(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args("--", "true", nodes=2))
    wait_for("the run directory", slurm.run_dirs)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode in (0, 130)
