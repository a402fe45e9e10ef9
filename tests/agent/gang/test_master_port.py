"""The port of rank 0: outside the ephemeral range, guarded, and different in each cycle."""

from __future__ import annotations

import socket
from dataclasses import replace

from muster.agent.gang.master_port import take_master_port
from muster.agent.job import Identity, Job
from muster.ports.blocks import PortBlock, take_block
from muster.ports.guards import CELL_SIZE
from muster.ports.ranges import ephemeral_range
from muster.rundir import RunPaths

RUN = RunPaths("/lustre/muster-runs/train-20260101T000000-ab12")
IDENTITY = Identity(node_index=0, host="n0", run=RUN, attempt=RUN.attempt(0), local=True)
JOB = Job(**{**dict.fromkeys(Job.__dataclass_fields__), "groups": [], "nodes": 2, "ray": False})


def test_each_cycle_has_another_one_outside_the_ephemeral_range() -> None:
    low, high = ephemeral_range()
    numbers = []
    for cycle in range(4):
        port = take_master_port(IDENTITY, JOB, cycle)
        port.release()
        numbers.append(port.number)
    assert len(set(numbers)) == 4
    assert not [number for number in numbers if low <= number <= high]


def test_rank_0_can_bind_it_while_it_is_held() -> None:
    port = take_master_port(IDENTITY, JOB, 0)
    try:
        with socket.create_server(("127.0.0.1", port.number)):
            pass
    finally:
        port.release()


def test_two_gangs_and_a_ray_node_on_one_host_never_share_a_block() -> None:
    first, second = take_master_port(IDENTITY, JOB, 0), take_master_port(IDENTITY, JOB, 0)
    ray = take_block(f"gang {RUN.run_id} 0", 100)  # even if it began to look at the same place
    try:
        assert first.number // CELL_SIZE != second.number // CELL_SIZE
        assert not {first.number, second.number} & set(ray.block.ports())
    finally:
        for held in (first, second, ray):
            held.release()


def test_with_a_pinned_block_it_lies_in_it() -> None:
    free = take_block("a block that is free", 100)
    free.release()
    port = take_master_port(IDENTITY, replace(JOB, port_base=free.block.base), 3)
    port.release()
    assert port.number == free.block.base + 3


def test_beside_ray_in_a_pinned_block_it_is_the_port_that_ray_leaves_free() -> None:
    port = take_master_port(IDENTITY, replace(JOB, port_base=20000, ray=True), 3)
    block = PortBlock(20000, 100)
    assert port.number in block.ports() and port.held is None
    named = {block.gcs, block.dashboard, block.client_server, block.guard}
    named |= {int(argument.partition("=")[2]) for argument in block.arguments() if not argument.startswith("--m")}
    workers = range(20010, block.guard)
    assert port.number not in named and port.number not in workers
