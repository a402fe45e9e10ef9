"""A run that is over holds no nodes, however it ended: its Slurm job is cancelled if its job script cannot end it."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.lab.conftest import SET_UP_UNTIL_LOST, SlurmCommand, agent_on
from tests.running import wait_for

LAB = {"nodes": 4}
FREED_S = 150.0  # silence is noticed after 11 s, Slurm sees a dead node after 10 s; the rest is for a busy machine
LOOP = "import sys, time\nfor number in range(int(sys.argv[1])):\n    print(number, flush=True)\n    time.sleep(1)\n"


@pytest.fixture
def loop(slurm: SlurmCommand) -> None:
    (slurm.cwd / "loop.py").write_text(LOOP)


@contextmanager
def cut_off(slurm: SlurmCommand, node: str) -> Iterator[None]:
    """As `muster lab partition` and `heal` do it."""
    assert slurm("lab", "partition", node).returncode == 0
    try:
        yield
    finally:
        assert slurm("lab", "heal", node).returncode == 0


def detached(slurm: SlurmCommand, *args: str) -> str:
    """A run that nothing follows, once its driver has said something; returns its Slurm job."""
    done = slurm("run", "--detach", "--no-ray", "--python", slurm.python, *args)
    assert done.returncode == 0, done.stderr
    slurm.wait_for_driver("0")
    return done.stdout.split()[1]


def state(slurm: SlurmCommand, job: str) -> str:
    return slurm.job(job).get("JobState", "unknown")


def wait_until_freed(slurm: SlurmCommand, job: str) -> None:
    """The cut-off node is not waited for: a job that is completing only waits for it."""
    wait_for(f"job {job} to end", lambda: state(slurm, job) not in ("RUNNING", "PENDING"), FREED_S)


def outcome(slurm: SlurmCommand) -> Path:
    return slurm.run_dir() / "attempt-0" / "outcome"


def test_the_job_of_a_run_whose_leader_was_cut_off_is_cancelled(slurm: SlurmCommand, loop: None) -> None:
    process = slurm.start("run", "-N", "3", "--no-ray", "--", "python", "loop.py", "100")
    slurm.wait_for_driver("0")
    with cut_off(slurm, slurm.hosts()[0]):
        _, err = process.communicate(timeout=FREED_S)
        assert process.returncode == 125, err
        wait_until_freed(slurm, slurm.status()["job_id"])
        assert (slurm.run_dir() / "attempt-0" / "job-claim.json").exists()  # a node that was left has done it
        stopped = slurm("stop", slurm.run_dir().name)
        reason = f"the leader {slurm.hosts()[0]} lost contact with all other nodes"
        assert stopped.returncode == 0 and reason in stopped.stdout, stopped.stderr


@pytest.mark.slow
def test_the_job_is_cancelled_although_every_agent_crashes(slurm: SlurmCommand, loop: None) -> None:
    """An agent that is to lead reads the variables of the job: here it cannot."""
    job = detached(slurm, "-N", "3", "--spares", "1", "--on-node-loss", "restart", "--", "python", "loop.py", "100")
    (slurm.run_dir() / "env.json").write_text("{")
    with cut_off(slurm, slurm.hosts()[0]):
        wait_until_freed(slurm, job)
        logs = [log.read_text() for log in sorted((slurm.run_dir() / "attempt-0" / "logs").glob("node-*.log"))[1:]]
        assert any("JSONDecodeError" in log for log in logs)
        wait_for("an outcome", outcome(slurm).exists)


def test_a_batch_host_that_was_restarted_leaves_no_job(slurm: SlurmCommand, loop: None) -> None:
    """It answers again, but its job script is gone: another node has led the run to its success."""
    (slurm.cwd / "wait.py").write_text("import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.2)\n")
    process = slurm.start(
        "run", "-N", "3", "--spares", "1", "--no-ray", "--setup", SET_UP_UNTIL_LOST, "--", "python", "wait.py"
    )
    slurm.wait_for_set_up(nodes=4)
    with slurm.lost(slurm.hosts()[0]):
        (slurm.cwd / "lost").touch()
        wait_for("the driver", lambda: slurm.status()["driver"]["state"] == "running")
    (slurm.cwd / "go").touch()
    _, err = process.communicate(timeout=FREED_S)
    assert process.returncode == 0, err
    wait_until_freed(slurm, slurm.status()["job_id"])


@pytest.mark.parametrize("command", ["status", "runs", "stop"])
def test_a_command_that_sees_a_finished_run_with_a_job_cancels_the_job(slurm: SlurmCommand, command: str) -> None:
    """The job script hangs: the leader has recorded the end, and the script does not end the job."""
    waits = "echo 0; until [ -e go ]; do sleep 0.1; done"
    job = detached(slurm, "-N", "2", "--", "bash", "-c", waits)
    stopped = [pid for pid in slurm.lab.processes(slurm.hosts()[0]) if _is_job_script(pid)]
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        (slurm.cwd / "go").touch()
        wait_for("the outcome", outcome(slurm).exists)
        _age(outcome(slurm))
        assert state(slurm, job) == "RUNNING"
        done = slurm(command, *([] if command == "runs" else [slurm.run_dir().name]), "--runs-dir", "muster-runs")
        assert done.returncode == 0 and f"cancelled Slurm job {job}" in done.stdout + done.stderr
        assert "succeeded" in done.stdout
    finally:
        for pid in stopped:
            _continue(pid)
    assert slurm.ended_job(job)["JobState"] == "CANCELLED"


def test_a_user_s_own_job_is_never_cancelled(slurm: SlurmCommand) -> None:
    muster = f"{shlex.quote(slurm.python)} -m muster.cli.main"
    (slurm.cwd / "own.sh").write_text(
        f"#!/bin/bash\n#SBATCH -N2 --no-kill\n{muster} run --no-ray -- bash -c 'echo 0; sleep 1000'\nsleep 1000\n"
    )
    job = slurm.slurm("sbatch", "--parsable", "own.sh").stdout.strip()
    run = slurm.wait_for_driver("0")
    os.kill(agent_on(slurm, slurm.hosts()[0]), signal.SIGKILL)
    wait_for("the outcome", outcome(slurm).exists)
    _age(outcome(slurm))
    for command in (["status", run.name], ["runs"], ["stop", run.name]):
        done = slurm(*command, "--runs-dir", "muster-runs")
        assert done.returncode == 0 and "cancelled Slurm" not in done.stdout + done.stderr
    wait_for("the step to end", lambda: not slurm.steps(job))
    assert state(slurm, job) == "RUNNING"


def test_stopping_during_the_set_up_leaves_no_job(slurm: SlurmCommand) -> None:
    done = slurm("run", "--detach", "--no-ray", "-N", "2", "--setup", "sleep 100", "--", "true")
    job = done.stdout.split()[1]
    wait_for("the step", lambda: slurm.steps(job))
    stopped = slurm("stop", "--runs-dir", "muster-runs", slurm.run_dir().name)
    assert stopped.returncode == 0, stopped.stderr
    assert state(slurm, job) not in ("RUNNING", "PENDING")


def _is_job_script(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[0].endswith(b"bash") and b"slurm_script" in b" ".join(words)


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _age(path: Path) -> None:
    """As if it had been written a minute ago."""
    then = time.time() - 60
    os.utime(path, (then, then))
