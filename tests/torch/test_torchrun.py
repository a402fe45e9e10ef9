"""Real launchers on loopback, one for each node: stock torchrun with `--rdzv-backend muster`, and `muster torchrun`."""

from __future__ import annotations

import os
import signal

import pytest
from tests.running import wait_for
from tests.torch.conftest import DEADLINE_S, Launchers, children, needs_torch

pytestmark = needs_torch

ALL_REDUCE = """
import os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
hold, node = os.path.exists("hold"), os.environ["MUSTER_TEST_NODE"]
print("node", node, "rank", dist.get_rank(), "of", dist.get_world_size(), "sum", total.item(), flush=True)
if hold:
    time.sleep(1000)
dist.destroy_process_group()
"""
PLAIN = """
import os, sys, time
rank, code = os.environ["RANK"], int(sys.argv[1])
print("rank", rank, flush=True)
if code and rank == "0":
    time.sleep(1000)  # runs until the other's failure ends it
sys.exit(code)
"""
TWO_AND_A_SPARE = ("--nnodes", "2", "--spares", "1", "--rdzv-conf", "last_call=60")


def test_nodes_under_stock_torchrun_reduce_together_and_a_spare_exits_with_0(launchers: Launchers) -> None:
    (launchers.directory / "train.py").write_text(ALL_REDUCE)
    for node in range(3):
        conf = f"spares=1,last_call=60,node={node}"
        launchers.stock(node, "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-conf", conf, "train.py")
    assert launchers.codes() == {0: 0, 1: 0, 2: 0}, [launchers.log(node) for node in range(3)]
    assert "node 0 rank 0 of 2 sum 3.0" in launchers.log(0) and "node 1 rank 1 of 2 sum 3.0" in launchers.log(1)
    assert "rank" not in launchers.log(2).replace("muster: ", "")


@pytest.mark.slow
def test_when_the_job_succeeds_a_spare_exits_with_0(launchers: Launchers) -> None:
    (launchers.directory / "train.py").write_text(PLAIN)
    for node in range(3):
        launchers.muster(node, *TWO_AND_A_SPARE, "train.py", "0")
    assert launchers.codes() == {0: 0, 1: 0, 2: 0}, [launchers.log(node) for node in range(3)]
    assert [f"rank {rank}\n" in launchers.log(rank) for rank in range(3)] == [True, True, False]


def test_when_the_job_fails_all_nodes_exit_with_the_code_of_the_worker(launchers: Launchers) -> None:
    (launchers.directory / "train.py").write_text(PLAIN)
    for node in range(3):
        launchers.muster(node, *TWO_AND_A_SPARE, "--max-restarts", "0", "train.py", "7")
    assert launchers.codes() == {0: 7, 1: 7, 2: 7}, [launchers.log(node) for node in range(3)]
    assert all("the worker of rank 1 exited with 7" in launchers.log(node) for node in range(3))


def test_a_spare_takes_the_place_of_a_killed_node_and_the_job_succeeds(launchers: Launchers) -> None:
    (launchers.directory / "train.py").write_text(ALL_REDUCE)
    (launchers.directory / "hold").touch()
    for node in range(3):
        launchers.muster(node, *TWO_AND_A_SPARE, "train.py")
    for node in (0, 1):
        launchers.wait_for_line(node, f"node {node} rank {node} of 2")
    victim = 1 if "round 1 runs" not in launchers.log(1) else 0  # not the coordinator's
    (launchers.directory / "hold").unlink()
    launchers.kill(victim)
    codes = launchers.codes()
    assert codes.pop(victim) == -9 and set(codes.values()) == {0}, [launchers.log(node) for node in range(3)]
    assert "node 2 rank 1 of 2 sum 3.0" in launchers.log(2)


@pytest.mark.slow
def test_with_failover_the_job_succeeds_although_the_coordinator_is_killed(launchers: Launchers) -> None:
    (launchers.directory / "train.py").write_text(ALL_REDUCE)
    (launchers.directory / "hold").touch()
    for node in range(3):
        launchers.muster(node, *TWO_AND_A_SPARE, "--failover-dir", "shared", "train.py")
    for node in (0, 1):
        launchers.wait_for_line(node, f"node {node} rank {node} of 2")
    assert "round 1 runs" in launchers.log(0)  # it coordinates
    (launchers.directory / "hold").unlink()
    launchers.kill(0)
    codes = launchers.codes()
    assert codes == {0: -9, 1: 0, 2: 0}, [launchers.log(node) for node in range(3)]
    assert "node 1 rank 0 of 2 sum 3.0" in launchers.log(1) and "node 2 rank 1 of 2 sum 3.0" in launchers.log(2)
    assert "the coordinator" in launchers.log(1) and "round 2 runs" in launchers.log(1) + launchers.log(2)


@pytest.mark.slow
def test_with_failover_a_coordinator_that_was_stopped_kills_its_workers_and_leaves(launchers: Launchers) -> None:
    (launchers.directory / "train.py").write_text(ALL_REDUCE)
    (launchers.directory / "hold").touch()
    for node in range(3):
        launchers.muster(node, *TWO_AND_A_SPARE, "--failover-dir", "shared", "train.py")
    for node in (0, 1):
        launchers.wait_for_line(node, f"node {node} rank {node} of 2")
    launchers.processes[0].send_signal(signal.SIGSTOP)
    (worker,) = children(launchers.processes[0].pid)
    launchers.wait_for_line(2, "node 2 rank 1 of 2")  # of the second round, which holds, too
    launchers.processes[0].send_signal(signal.SIGCONT)
    assert launchers.processes[0].wait(DEADLINE_S) not in (0, -9), launchers.log(0)
    assert "this node coordinates the job no longer: its lease has expired" in launchers.log(0)
    wait_for("its worker to be gone", lambda: not os.path.exists(f"/proc/{worker}"))
    assert launchers.processes[1].poll() is launchers.processes[2].poll() is None


def test_too_few_nodes_by_the_deadline_end_with_125_and_the_count(launchers: Launchers) -> None:
    launchers.muster(0, "--nnodes", "2", "--rdzv-conf", "timeout=1", "train.py")
    assert launchers.codes() == {0: 125}
    assert "1 of the 2 nodes that the job needs joined within 1 s" in launchers.log(0)
