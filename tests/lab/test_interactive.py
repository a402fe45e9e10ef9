"""Interactive work runs on a real Slurm: an idle cluster, commands and shells on its nodes, guests, its end."""

from __future__ import annotations

import os
import pty
import signal

import pytest
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

LAB = {"nodes": 3}

SHOW = "hostname; echo $MUSTER_RUN_ID $MUSTER_ATTEMPT $SLURM_JOB_ID $SLURM_STEP_ID $GREETING; pwd; echo bad >&2; exit 7"


@pytest.fixture
def cluster(slurm: SlurmCommand) -> str:
    """The Slurm job of an idle cluster of three nodes."""
    done = slurm("up", "-N", "3", "--no-ray", "--python", slurm.python, "--env", "GREETING=hello")
    assert done.returncode == 0, done.stderr
    run, job_id = done.stdout.split()
    assert run == slurm.run_dir().name
    return job_id


def test_a_cluster_is_used_on_all_its_nodes_and_its_end_is_a_completed_job(slurm: SlurmCommand, cluster: str) -> None:
    run = slurm.run_dir().name
    done = slurm("exec", "--node", "1", "--", "bash", "-c", SHOW)
    assert done.stdout == f"n2\n{run} 0 {cluster} hello\n{slurm.cwd}\n", done.stderr
    assert done.returncode == 7 and "bad\n" in done.stderr
    assert slurm("exec", cluster, "--node", "n3", "--", "hostname").stdout == "n3\n"
    guest = slurm("run", "--in", cluster, "--", "bash", "-c", "hostname; exit 3")
    assert (guest.stdout, guest.returncode) == ("n1\n", 3), guest.stderr
    printed = slurm("tunnel", cluster, "8080", "--node", "2", "--login", "ann@login").stdout
    assert printed == "ssh -N -L 8080:127.0.0.1:8080 -J ann@login n3\n"
    down = slurm("down")
    assert f"{run}: succeeded" in down.stdout, down.stderr
    job = slurm.ended_job(cluster)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")


def test_an_open_shell_ends_with_the_cluster_and_a_signal_reaches_what_runs(slurm: SlurmCommand, cluster: str) -> None:
    ours, theirs = pty.openpty()
    shell = slurm.start(
        "attach", "--node", "2", stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, text=False
    )
    os.close(theirs)
    os.write(ours, b"tty >$MUSTER_OUTPUT_DIR/tty; hostname >$MUSTER_OUTPUT_DIR/host\n")
    output = slurm.run_dir() / "output"
    wait_for("the shell", lambda: (output / "host").exists() and (output / "host").read_text() == "n3\n")
    assert (output / "tty").read_text().startswith("/dev/pts/")
    trap = "exec 3<> <(:); trap 'exit 6' INT; touch $MUSTER_OUTPUT_DIR/ready; while :; do read -t 0.1 -u 3; done"
    command = slurm.start("exec", "--", "bash", "-c", trap)
    wait_for("the command", (output / "ready").exists)
    assert len(list((slurm.run_dir() / "attempt-0" / "sessions").iterdir())) == 2
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=180)
    assert command.returncode == 6
    assert "succeeded" in slurm("down").stdout
    assert slurm.ended_job(cluster)["JobState"] == "COMPLETED"
    assert shell.wait(timeout=180) != 0
    os.close(ours)


def test_a_cancelled_cluster_ends_its_guests_and_sessions(slurm: SlurmCommand, cluster: str) -> None:
    hold = "touch $MUSTER_OUTPUT_DIR/$0; sleep 1000"
    guest = slurm.start("run", "--in", cluster, "--", "bash", "-c", hold, "guest")
    session = slurm.start("exec", "--node", "1", "--", "bash", "-c", hold, "session")
    for who in ("guest", "session"):
        wait_for(f"the {who}", (slurm.run_dir() / "output" / who).exists)
    slurm.slurm("scancel", cluster)
    assert slurm.ended_job(cluster)["JobState"] == "CANCELLED"
    for process in (guest, session):
        process.communicate(timeout=180)
        assert process.returncode not in (0, None)
    refused = slurm("attach", cluster)
    assert refused.returncode != 0 and "has ended (stopped" in refused.stderr


def test_a_cluster_that_waits_in_the_queue_cannot_be_entered_but_taken_down(slurm: SlurmCommand) -> None:
    job_id = slurm("up", "-N", "1", "--no-ray", "--detach", "--sbatch", "hold").stdout.split()[1]
    refused = slurm("exec", "--", "true")
    assert refused.returncode != 0 and f"is pending as Slurm job {job_id}" in refused.stderr
    assert "cancelled before it began" in slurm("down").stdout
    assert slurm.ended_job(job_id)["JobState"] == "CANCELLED"
