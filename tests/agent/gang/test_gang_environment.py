"""The environment of a gang's processes: the variables of torchrun and of JAX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.free_port import free_port

from muster.agent.gang.gang_environment import rank_environment
from muster.agent.gang_part import GangPart

PART = GangPart(cycle=0, node=0, nodes=2, procs=2, address="127.0.0.1", port=29400)
# Where Muster differs: the node's CPUs divided; no file, the rank's log has it; rank 0 opens the store, no agent does.
OTHERWISE = {"OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"}
NOT_FOR_RANKS = {
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "LC_CTYPE",
    "LINES",
    "COLUMNS",
}  # torchrun's and Python's own affairs
DUMP = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".json"), "w") as file:
    json.dump(dict(os.environ), file)
"""


def under_torchrun(tmp_path: Path, port: int) -> dict[int, dict[str, str]]:
    """Return the environments of two nodes with two processes each under the real torchrun, by rank."""
    (tmp_path / "dump.py").write_text(DUMP)
    common = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
    common += ["--rdzv-id=the-run", "--max-restarts=3", str(tmp_path / "dump.py"), str(tmp_path)]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", f"--node-rank={node}", *common], stderr=subprocess.PIPE
        )
        for node in range(2)
    ]
    try:
        ends = [node.communicate(timeout=120)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert [node.returncode for node in nodes] == [0, 0], ends
    return {rank: json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)}


def test_every_rank_finds_what_torchrun_would_give_it(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: there is no torchrun to compare with")
    port = free_port()
    for rank, found in under_torchrun(tmp_path, port).items():
        part = replace(PART, node=rank // 2, port=port)
        ours = rank_environment({}, part, rank % 2, "the-run", 3)
        added = found.keys() - os.environ.keys() - NOT_FOR_RANKS
        assert added <= ours.keys() | OTHERWISE
        theirs = {name: found[name] for name in added - OTHERWISE}
        assert {name: ours.get(name) for name in theirs} == theirs


def test_ranks_count_through_the_nodes() -> None:
    part = replace(PART, node=1, nodes=3, procs=4)
    env = rank_environment({}, part, 2, "the-run", 0)
    assert (env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"]) == ("6", "2", "1")
    assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_WORLD_SIZE"]) == ("12", "4", "3")


def test_a_later_cycle_is_a_restart_to_torch() -> None:
    assert rank_environment({}, replace(PART, cycle=2), 0, "the-run", 5)["TORCHELASTIC_RESTART_COUNT"] == "2"


@pytest.mark.parametrize(("address", "coordinator"), [("10.0.0.7", "10.0.0.7:29400"), ("fd00::7", "[fd00::7]:29400")])
def test_jax_finds_its_coordinator_and_its_process_id(address: str, coordinator: str) -> None:
    env = rank_environment({}, replace(PART, node=1, address=address), 1, "the-run", 0)
    assert env["JAX_COORDINATOR_ADDRESS"] == coordinator
    assert (env["JAX_NUM_PROCESSES"], env["JAX_PROCESS_ID"]) == ("4", "3")
    assert env["MASTER_ADDR"] == address


def test_what_another_launcher_left_in_the_environment_does_not_count() -> None:
    left = {"RANK": "7", "MASTER_ADDR": "elsewhere", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "another"}
    env = rank_environment(left, PART, 0, "the-run", 0)
    assert (env["RANK"], env["MASTER_ADDR"], env["LOCAL_RANK"]) == ("0", "127.0.0.1", "0")
    assert env["TORCHELASTIC_RUN_ID"] == "the-run"


def test_the_user_s_own_error_handling_of_nccl_stays_as_under_torchrun() -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    assert rank_environment({name: "3"}, PART, 0, "the-run", 0)[name] == "3"


def test_gpus_are_not_divided() -> None:
    assert rank_environment({"CUDA_VISIBLE_DEVICES": "0,1"}, PART, 1, "the-run", 0)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in rank_environment({}, PART, 1, "the-run", 0)
