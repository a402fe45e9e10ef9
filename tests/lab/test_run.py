"""`muster run` works on a real Slurm of four nodes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "hello_cluster.py"
HOSTS = "for h in $(cat $MUSTER_OUTPUT_DIR/../attempt-0/hosts); do echo host $h; done"


@pytest.mark.ray
def test_four_ray_nodes_come_up_and_the_job_completes(slurm: SlurmCommand) -> None:
    done = slurm.run("--", "python", str(EXAMPLE), ray=True)
    assert done.returncode == 0, done.stderr
    assert "4 alive nodes in run" in done.stdout
    status = slurm.status()
    assert [(n["rank"], n["host"]) for n in status["nodes"]] == [(0, "n1"), (1, "n2"), (2, "n3"), (3, "n4")]
    job = slurm.ended_job(status["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")
    output = (slurm.run_dir() / f"slurm-{status['job_id']}.out").read_text()
    assert "4 alive nodes in run" not in output and "[muster" in output  # the driver's output is stored once
    assert f"the driver's output is in {slurm.run_dir()}/attempt-0/logs/driver.log" in output


def test_the_drivers_code_is_the_jobs(slurm: SlurmCommand) -> None:
    done = slurm.run("--", "bash", "-c", "hostname; exit 7")
    assert (done.returncode, done.stdout) == (7, "n1\n")
    job = slurm.ended_job(slurm.status()["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "7:0")


def test_a_job_of_one_node_works(slurm: SlurmCommand) -> None:
    assert slurm.run("--", "true", nodes=1).returncode == 0


def test_two_jobs_at_once_on_disjoint_nodes_work(slurm: SlurmCommand) -> None:
    meet = "touch ../$0; until [ -e ../$1 ]; do sleep 0.1; done; echo met"
    command = ["--workdir", str(slurm.cwd), "--", "bash", "-c", meet.replace("../", "")]
    one = slurm.start(*slurm.run_args(*command, "one", "two", nodes=2))
    two = slurm.start(*slurm.run_args(*command, "two", "one", nodes=2))
    assert [process.communicate(timeout=100)[0] for process in (one, two)] == ["met\n", "met\n"]


def inside(slurm: SlurmCommand, *allocate: str, command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell text that uses `muster run` inside an allocation."""
    muster = shlex.join([sys.executable, "-m", "muster.cli.main", "run", "--python", slurm.python, "--no-ray"])
    return slurm.slurm(*allocate, "bash", "-c", command.replace("MUSTER_RUN", muster))


def test_inside_salloc_the_allocation_is_used(slurm: SlurmCommand) -> None:
    done = inside(slurm, "salloc", "--nodes=3", "--exclusive", command=f"MUSTER_RUN -- bash -c '{HOSTS}; exit 6'")
    assert done.stdout.split() == ["host", "n1", "host", "n2", "host", "n3"], done.stderr
    assert done.returncode == 6
    assert len(slurm.slurm("squeue", "--noheader", "--states=all", "--format=%i").stdout.split()) >= 1


def test_inside_salloc_fewer_nodes_may_be_used_but_not_more(slurm: SlurmCommand) -> None:
    done = inside(slurm, "salloc", "--nodes=2", "--exclusive", command=f"MUSTER_RUN -N 1 -- bash -c '{HOSTS}'")
    assert done.stdout.split() == ["host", "n1"], done.stderr
    done = inside(slurm, "salloc", "--nodes=2", "--exclusive", command="MUSTER_RUN -N 3 -- true")
    assert done.returncode != 0
    assert "has 2 nodes, too few for --nodes 3" in done.stderr


def test_inside_srun_pty_all_nodes_of_the_job_are_used(slurm: SlurmCommand) -> None:
    shell = ["srun", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--pty"]
    program = f"MUSTER_RUN -- bash -c '{HOSTS}'"
    muster = shlex.join([sys.executable, "-m", "muster.cli.main", "run", "--python", slurm.python, "--no-ray"])
    # `script` gives srun --pty the terminal that it insists on.
    words = " ".join(shell) + ' bash -c "' + program.replace("MUSTER_RUN", muster).replace("$", "\\$") + '"'
    done = slurm.slurm("script", "-qec", words, "/dev/null")
    assert "host n1" in done.stdout and "host n2" in done.stdout, done.stdout + done.stderr


def test_inside_ones_own_sbatch_file_it_works(slurm: SlurmCommand) -> None:
    script = slurm.cwd / "mine.sh"
    muster = shlex.join([sys.executable, "-m", "muster.cli.main", "run", "--python", slurm.python, "--no-ray"])
    script.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2 --exclusive --output=mine.out\n{muster} -- bash -c '{HOSTS}; exit 4'\n"
    )
    job_id = slurm.slurm("sbatch", "--parsable", "mine.sh").stdout.strip()
    job = slurm.ended_job(job_id)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "4:0")
    assert "host n1\nhost n2\n" in (slurm.cwd / "mine.out").read_text()


def test_detached_it_is_followed_and_stopped_by_job_id(slurm: SlurmCommand) -> None:
    done = slurm.run("--detach", "--", "bash", "-c", "trap 'echo saving; exit 0' TERM; echo ready; sleep 1000 & wait")
    job_id = done.stdout.split()[1]
    slurm.wait_for_driver("ready")
    assert slurm("status", job_id).stdout.startswith(slurm.run_dir().name)
    assert slurm.steps(job_id) == [f"{job_id}.0"]
    stopped = slurm("stop", job_id)
    assert "stopped by" in stopped.stdout, stopped.stderr
    assert slurm("logs", job_id).stdout == "ready\nsaving\n"
    assert slurm.ended_job(job_id)["JobState"] == "COMPLETED"


def test_an_interrupt_detaches_and_says_how_to_go_on(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args("--", "bash", "-c", "echo ready; sleep 1000"))
    slurm.wait_for_driver("ready")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    run_id = slurm.run_dir().name
    assert f"muster logs -f {run_id}" in err and f"muster stop {run_id}" in err
    assert slurm.status()["state"] == "running"
    assert slurm("stop").returncode == 0


def test_a_pending_job_is_stopped_by_cancelling_it_and_cleaned_away_only_then(slurm: SlurmCommand) -> None:
    done = slurm.run("--detach", "--sbatch", "hold", "--", "true")
    job_id = done.stdout.split()[1]
    assert slurm.status()["state"] == "pending"
    clean = ("clean", "--older-than", "0s", "--yes")
    assert f"is in Slurm's queue as job {job_id}" in slurm(*clean).stderr
    assert "cancelled before it began" in slurm("stop").stdout
    assert slurm.ended_job(job_id)["JobState"] == "CANCELLED"
    assert "removed 1 run:" in slurm(*clean).stdout and not slurm.run_dirs()


def test_scancel_gives_the_driver_its_grace_and_leaves_nothing(slurm: SlurmCommand) -> None:
    trap = "exec 3<> <(:); trap 'echo saving; exit 9' TERM; echo ready; while :; do read -t 0.1 -u 3; done"
    process = slurm.start(*slurm.run_args("--", "bash", "-c", trap, nodes=2))
    slurm.wait_for_driver("ready")
    job_id = slurm.status()["job_id"]
    slurm.slurm("scancel", job_id)
    out, _ = process.communicate(timeout=180)
    assert "saving" in out
    assert process.returncode == 9
    assert slurm.status()["state"] == "stopped"


def test_a_requeued_job_is_another_attempt_of_the_same_run(slurm: SlurmCommand) -> None:
    script = """
        echo attempt $MUSTER_ATTEMPT resume $MUSTER_RESUME run $MUSTER_RUN_ID
        [ $MUSTER_ATTEMPT = 1 ] && exit 5
        exec 3<> <(:); trap 'echo saving; exit 0' TERM; while :; do read -t 0.1 -u 3; done
    """
    process = slurm.start(*slurm.run_args("--sbatch", "requeue", "--", "bash", "-c", script, nodes=2))
    run = slurm.wait_for_driver("attempt 0 resume 0")
    job_id = slurm.status()["job_id"]
    slurm.slurm("scontrol", "requeue", job_id)
    wait_for("the job to be pending again", lambda: slurm.job(job_id)["JobState"] == "PENDING")
    slurm.slurm("scontrol", "update", f"jobid={job_id}", "starttime=now+2")  # Slurm would wait two minutes
    out, err = process.communicate(timeout=200)
    assert process.returncode == 5, err
    assert out == f"attempt 0 resume 0 run {run.name}\nsaving\nattempt 1 resume 1 run {run.name}\n"
    assert slurm.status()["attempt"] == 1
    assert (run / "attempt-0" / "logs" / "driver.log").read_text().startswith("attempt 0")


def test_options_reach_sbatch_whatever_they_contain(slurm: SlurmCommand) -> None:
    comment = """it's "odd" # not a comment \\ $(id) %j"""
    done = slurm.run("--comment", comment, "-J", "a b'c", "-t", "5", "-p", "long", "--", "true", nodes=1)
    assert done.returncode == 0, done.stderr
    shown = slurm.slurm("scontrol", "show", "job", slurm.status()["job_id"]).stdout
    assert f"Comment={comment}" in shown and "JobName=a b'c" in shown
    assert "TimeLimit=00:05:00" in shown and "Partition=long" in shown


def test_more_nodes_than_there_are_is_refused_and_leaves_nothing(slurm: SlurmCommand) -> None:
    refused = slurm.run("-p", "nowhere", "--", "true")
    assert refused.returncode != 0 and "sbatch refused the job: " in refused.stderr
    done = slurm.run("--", "true", nodes=40)
    assert done.returncode != 0
    assert "--nodes 40: the default partition has 4 nodes" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not slurm.run_dirs()


def test_what_is_submitted_is_what_dry_run_prints(slurm: SlurmCommand) -> None:
    dry = slurm.run("--dry-run", "--", "true", nodes=2)
    assert not slurm.run_dirs()
    slurm.run("--", "true", nodes=2)
    submitted = (slurm.run_dir() / "job.sh").read_text()
    unnamed = [line for line in submitted.splitlines() if slurm.run_dir().name not in line]
    assert [line for line in dry.stdout.splitlines() if line in unnamed] == unnamed


def test_the_default_of_exclusive_nodes_can_be_removed(slurm: SlurmCommand) -> None:
    done = slurm.run(
        "--sbatch", "exclusive=", "--cpus-per-node", "2", "--", "bash", "-c", "echo $SLURM_CPUS_ON_NODE", nodes=1
    )
    assert done.stdout == "2\n", done.stderr
    done = slurm.run("--", "bash", "-c", "echo $SLURM_CPUS_ON_NODE", nodes=1)
    assert done.stdout == "8\n", done.stderr


def test_only_one_step_is_made_and_follow_costs_no_rpc(slurm: SlurmCommand) -> None:
    process = slurm.start(*slurm.run_args("--", "bash", "-c", "echo ready; sleep 1000", nodes=2))
    slurm.wait_for_driver("ready")
    job_id = slurm.status()["job_id"]
    assert slurm.steps(job_id) == [f"{job_id}.0"]
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=180)
    assert slurm("stop").returncode == 0
    wait_for("the job to end", lambda: slurm.ended_job(job_id))
