"""Ports for Ray: a block of its own for every agent, outside the ephemeral range, held while the run lasts."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent.ray_node import ports
from muster.agent.ray_node.ports import PortBlock, candidates, ephemeral_range, take_block

SIZE = 50


def test_two_agents_on_one_host_never_get_the_same_block() -> None:
    held = [take_block("same seed", SIZE) for _ in range(5)]
    try:
        assert len({one.block.base for one in held}) == 5
    finally:
        for one in held:
            one.release()


def test_a_released_block_is_free_again() -> None:
    first = take_block("seed", SIZE)
    first.release()
    again = take_block("seed", SIZE)
    again.release()
    assert again.block == first.block


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_block_in_which_anything_listens_is_passed_over(address: str) -> None:
    free = take_block("seed", SIZE)
    free.release()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, free.block.base + 7), family=family):
        other = take_block("seed", SIZE)
        other.release()
    assert other.block != free.block


def test_a_pinned_block_that_is_taken_is_refused_by_its_ports() -> None:
    held = take_block("seed", SIZE)
    try:
        with pytest.raises(OSError, match=f"{held.block.base}-{held.block.guard}"):
            take_block("other", SIZE, pinned=held.block.base)
    finally:
        held.release()


@given(seed=st.text(), size=st.sampled_from([50, 100, 1000]), low=st.integers(1024, 65000), width=st.integers(1, 40000))
def test_candidates_never_touch_the_ephemeral_range_if_anything_is_left(
    seed: str, size: int, low: int, width: int
) -> None:
    high = min(low + width, 65535)
    bases = list(candidates(seed, size, (low, high)))
    assert len(bases) == len(set(bases)) > 0
    assert all(base >= ports.FIRST_PORT and base + size - 1 <= ports.LAST_PORT for base in bases)
    touching = [base for base in bases if base <= high and base + size - 1 >= low]
    assert not touching or len(touching) == len(bases)


def test_on_this_host_blocks_lie_outside_the_ephemeral_range() -> None:
    low, high = ephemeral_range()
    held = take_block("seed", SIZE)
    held.release()
    assert held.block.guard < low or held.block.base > high


def test_every_port_of_ray_s_is_in_the_block_and_used_once() -> None:
    block = PortBlock(20000, 1000)
    given_ports = dict(argument.lstrip("-").split("=") for argument in block.arguments())
    low, high = int(given_ports.pop("min-worker-port")), int(given_ports.pop("max-worker-port"))
    fixed = [*map(int, given_ports.values()), block.gcs, block.dashboard, block.client_server]
    assert len(set(fixed)) == len(fixed)
    assert all(port in block.ports() and port < low for port in fixed)
    assert high < block.guard
