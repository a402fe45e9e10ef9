"""A gang with torch.distributed on a real Slurm succeeds within its restart budget after crashes and hangs."""

from __future__ import annotations

import pytest
from tests.lab.conftest import SlurmCommand
from tests.running import wait_for

LAB = {"nodes": 4}
HUNG = "hung: no output and no muster.beat() for 10 s"
# Adds up over all ranks, again and again. One rank crashes in cycle 0, one hangs in cycle 1. Importing torch on a busy
# machine takes as long as a hang does here: until all are there, a thread beats.
PROGRAM = """
import os, threading, time
import muster
begun = threading.Event()
def beat_until_begun():
    while not begun.wait(0.5):
        muster.beat()
threading.Thread(target=beat_until_begun, daemon=True).start()
import torch, torch.distributed as dist
rank, cycle = int(os.environ["RANK"]), int(os.environ["MUSTER_CYCLE"])
dist.init_process_group("gloo")
dist.barrier()
begun.set()
for step in range(20):
    if step == 5 and (cycle, rank) == (0, 4):
        os._exit(3)  # as a crash does: torch's own threads may abort a process that leaves in order
    if step == 5 and (cycle, rank) == (1, 2):
        time.sleep(1000)
    share = torch.tensor([rank + 1.0])
    dist.all_reduce(share)
    assert share.item() == 21
    if step == 0:
        print("cycle", cycle, "rank", rank, "step", step, flush=True)
dist.barrier()
dist.destroy_process_group()
print("cycle", cycle, "rank", rank, "of", os.environ["WORLD_SIZE"], "is done", flush=True)
"""


def gang_args(slurm: SlurmCommand, *options: str) -> list[str]:
    (slurm.cwd / "train.py").write_text(PROGRAM)
    options = ("--spares", "1", "--procs-per-node", "2", "--stall-timeout", "10s", *options)
    return slurm.run_args(*options, "--", "python", "train.py", nodes=3)


@pytest.mark.slow
def test_a_crash_and_a_hang_within_the_budget_end_in_success(slurm: SlurmCommand) -> None:
    pytest.importorskip("torch", reason="torch is not installed: no torch.distributed to try")
    done = slurm(*gang_args(slurm, "--restart-on-driver-failure", "--max-restarts", "2"), timeout=240)
    assert done.returncode == 0, done.stderr
    status = slurm.status()
    hosts = [cycle["members"] for cycle in status["cycles"]]
    assert len(hosts) == 3 and all(len(members) == 3 for members in hosts)
    crash, hang, success = [cycle["reason"] for cycle in status["cycles"]]
    assert (crash, success) == (f"the driver failed: rank 4 on {hosts[0][2]} exited with 3", "the driver exited with 0")
    assert HUNG in hang  # those that wait for the rank that hangs are silent, too
    for rank in range(6):
        assert f"cycle 2 rank {rank} of 6 is done" in slurm.rank_output(rank, 2).read_text()
        assert f"cycle 1 rank {rank} step 0" in slurm.rank_output(rank, 1).read_text()
    assert "cycle 2 rank 0 of 6 is done" in done.stdout
    job = slurm.ended_job(status["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0")


def test_without_a_budget_a_crash_ends_the_job_with_its_code(slurm: SlurmCommand) -> None:
    program = "[ $RANK != 4 ] || exit 3; sleep 1000"
    options = ("--spares", "1", "--procs-per-node", "2", "--restart-on-driver-failure", "--max-restarts", "0")
    done = slurm.run(*options, "--", "bash", "-c", program, nodes=3)
    assert done.returncode == 3
    assert "rank 4 on" in done.stderr and "exited with 3" in done.stderr
    job = slurm.ended_job(slurm.status()["job_id"])
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "3:0")


def test_without_a_budget_a_hang_ends_the_job_with_1(slurm: SlurmCommand) -> None:
    program = "[ $RANK != 3 ] || sleep 1000; while :; do echo at work; sleep 0.2; done"
    options = ("--spares", "1", "--procs-per-node", "2", "--stall-timeout", "3s", "--restart-on-driver-failure")
    done = slurm.run(*options, "--max-restarts", "0", "--", "bash", "-c", program, nodes=3)
    assert done.returncode == 1
    assert "rank 3 on" in done.stderr and "hung: no output and no muster.beat() for 3 s" in done.stderr


def test_a_killed_node_costs_a_restart_and_the_spare_takes_its_ranks(slurm: SlurmCommand) -> None:
    wait_once = 'echo "cycle $MUSTER_CYCLE rank $RANK"; [ $MUSTER_CYCLE != 0 ] || sleep 1000'
    options = ("--spares", "1", "--procs-per-node", "2", "--on-node-loss", "restart", "--", "bash", "-c", wait_once)
    process = slurm.start(*slurm.run_args(*options, nodes=3))
    run = slurm.wait_for_driver("cycle 0")
    wait_for("all ranks", lambda: all(slurm.rank_output(rank).exists() for rank in range(6)))
    victim = (run / "attempt-0" / "hosts").read_text().split()[1]
    slurm.lab.kill_node(victim)
    try:
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        first, second = slurm.status()["cycles"]
        assert victim in first["members"] and victim in first["reason"]
        assert len(second["members"]) == 3 and victim not in second["members"]
        told = [slurm.rank_output(rank, 1).read_text().splitlines()[-1] for rank in range(6)]
        assert told == [f"cycle 1 rank {rank}" for rank in range(6)]
    finally:
        slurm.lab.heal(victim)
