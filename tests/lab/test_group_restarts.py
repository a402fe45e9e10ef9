"""A job of groups (a heterogeneous job) starts again on a real Slurm by a requeue or as the next job of a chain."""

from __future__ import annotations

import os
import re
import signal

from tests.lab.conftest import SlurmCommand, agent_on
from tests.running import wait_for

from muster.rundir import RunPaths, read_json

LAB = {"nodes": 3, "kill_wait": 30}
GROUPS = """
groups:
  - {name: trainers, nodes: 1}
  - {name: actors, nodes: 2, partition: long}
"""
STARTED = "echo attempt $MUSTER_ATTEMPT resume $MUSTER_RESUME in $MUSTER_GROUP"
UNTIL_TERM = f"exec 3<> <(:); trap 'echo saving; exit 0' TERM; {STARTED}; [ $MUSTER_ATTEMPT = 1 ] && exit 5; "
UNTIL_TERM += "while :; do read -t 0.1 -u 3; done"


def groups(slurm: SlurmCommand, *args: str) -> list[str]:
    (slurm.cwd / "job.yaml").write_text(GROUPS)
    return ["run", "-f", "job.yaml", "--python", slurm.python, "--no-ray", *args]


def components(slurm: SlurmCommand, job_id: str, field: str) -> list[str]:
    """The values of a field for the two groups of a job."""
    return re.findall(rf"\b{field}=(\S+)", slurm.slurm("scontrol", "show", "job", job_id).stdout)


def begins_again(slurm: SlurmCommand, job_id: str) -> None:
    """Slurm would wait two minutes."""
    wait_for(f"job {job_id} to be pending", lambda: components(slurm, job_id, "JobState") == ["PENDING"] * 2)
    for component in components(slurm, job_id, "JobId"):
        slurm.slurm("scontrol", "update", f"jobid={component}", "starttime=now+2")


def attempts(slurm: SlurmCommand) -> list[str]:
    return sorted(path.name for path in slurm.run_dir().glob("attempt-*"))


def next_attempt(slurm: SlurmCommand) -> object:
    return read_json(RunPaths(str(slurm.run_dir())).attempt(0).next_attempt)


def test_an_exit_code_that_was_named_requeues_all_groups(slurm: SlurmCommand) -> None:
    program = f"{STARTED}; exit $((7 - MUSTER_ATTEMPT))"
    process = slurm.start(*groups(slurm, "--requeue-on", "exit=7", "--", "bash", "-c", program))
    slurm.wait_for_driver("attempt 0 resume 0")
    job_id = slurm.status()["job_id"]
    begins_again(slurm, job_id)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 6, err
    assert out.splitlines() == [f"attempt {n} resume {n} in trainers" for n in (0, 1)]
    assert components(slurm, job_id, "Restarts") == ["1", "1"]
    assert len(slurm.status()["nodes"]) == 3
    assert attempts(slurm) == ["attempt-0", "attempt-1"]


def test_a_lost_node_of_the_second_group_requeues_all_groups(slurm: SlurmCommand) -> None:
    process = slurm.start(*groups(slurm, "--requeue-on", "node-fail", "--", "bash", "-c", UNTIL_TERM))
    slurm.wait_for_driver("attempt 0 resume 0")
    job_id = slurm.status()["job_id"]
    os.kill(agent_on(slurm, slurm.hosts()[2]), signal.SIGKILL)
    begins_again(slurm, job_id)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, "attempt 1 resume 1" in out) == (5, True), err
    assert next_attempt(slurm) == {"again": "requeue", "cause": "node-fail", "note": ""}


def test_slurm_s_own_requeue_is_the_next_attempt(slurm: SlurmCommand) -> None:
    process = slurm.start(*groups(slurm, "--requeue-on", "preempt", "--", "bash", "-c", UNTIL_TERM))
    slurm.wait_for_driver("attempt 0 resume 0")
    job_id = slurm.status()["job_id"]
    assert slurm.slurm("scontrol", "requeue", job_id).returncode == 0
    begins_again(slurm, job_id)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, "attempt 1 resume 1" in out) == (5, True), err
    assert next_attempt(slurm) == {"again": "requeue", "cause": "slurm", "note": ""}


def test_a_chain_goes_on_with_its_next_job_and_ends_with_its_first_success(slurm: SlurmCommand) -> None:
    done = slurm(*groups(slurm, "--chain", "3", "--", "bash", "-c", f"{STARTED}; [ $MUSTER_ATTEMPT = 1 ]"), timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"attempt {n} resume {n} in trainers" for n in (0, 1)]
    jobs = read_json(str(slurm.run_dir() / "submission.json"))["job_ids"]
    assert len(jobs) == 3 and attempts(slurm) == ["attempt-0", "attempt-1"]
    for job, code in zip(jobs, ("1:0", "0:0", "0:0"), strict=True):
        assert slurm.ended_job(job)["JobState"] in ("COMPLETED", "FAILED")
        assert components(slurm, job, "ExitCode")[0] == code
