"""Ports for Ray: a block of its own for every agent, outside the ephemeral range, held while the run lasts."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.ports import blocks as ports
from muster.ports import socket_leases as services
from muster.ports.blocks import PortBlock, candidates, sizes, take_block
from muster.ports.guards import CELL_SIZE, is_in_a_block
from muster.ports.ranges import NEMO_RL_BANDS, HostPorts, ephemeral_range

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


SIZES = st.sampled_from([25, 50, 100, 1000])
RANGES = st.tuples(st.integers(1024, 65535), st.integers(0, 64511)).map(lambda one: (one[0], min(sum(one), 65535)))
RESERVED = st.lists(st.tuples(st.integers(1, 65535), st.integers(0, 3000)), max_size=3)


def touches(block: PortBlock, low: int, high: int) -> bool:
    return block.base <= high and block.guard >= low


@settings(deadline=None)
@given(seed=st.text(), size=SIZES, ephemeral=RANGES, reserved=RESERVED)
def test_candidates_come_from_the_safest_ports_first_and_each_once(
    seed: str, size: int, ephemeral: tuple[int, int], reserved: list[tuple[int, int]]
) -> None:
    kept = tuple(range(first, min(first + more, 65535) + 1) for first, more in reserved)
    found = list(candidates(seed, [size], HostPorts(ephemeral, kept)))
    blocks = [block for _, block in found]
    assert len({block.base for block in blocks}) == len(blocks)
    assert all(block.base >= 1024 and block.guard <= 65535 for block in blocks)
    zones = HostPorts(ephemeral, kept).zones()
    places = [zones.index(zone) for zone, _ in found]
    assert places == sorted(places)
    for zone, block in found:
        if zone.preferred:
            assert not touches(block, *ephemeral)
            assert not [band for band in (*NEMO_RL_BANDS, *kept) if touches(block, band[0], band[-1])]


def test_where_the_full_size_does_not_fit_a_smaller_block_comes_before_worse_ports() -> None:
    narrow = HostPorts((9000, 65000))
    found = [(zone.preferred, block.size) for zone, block in candidates("seed", sizes(1000, 300), narrow)]
    assert found[0] == (True, 500)
    assert next(size for preferred, size in found if not preferred) == 1000


def test_blocks_of_different_sizes_never_overlap_though_nothing_is_bound_in_them() -> None:
    large = take_block("seed", 200)
    try:
        inside = [PortBlock(large.block.base + offset, 50) for offset in (0, 50, 100)]
        assert [ports._free(block) for block in inside] == [None] * 3
        assert is_in_a_block(large.block.base + 3)
    finally:
        large.release()
    assert not is_in_a_block(large.block.base + 3)


def test_a_block_with_the_leased_port_of_a_service_is_passed_over_though_the_service_has_not_bound_it() -> None:
    free = take_block("seed", SIZE)
    free.release()
    lease = services.take("seed", free.block.base + 7)
    lease.give()
    try:
        other = take_block("seed", SIZE)
        other.release()
        assert other.block != free.block
    finally:
        lease.release()


def test_a_service_gets_no_port_of_a_block_that_is_held() -> None:
    ours = take_block("seed", SIZE)
    try:
        assert services._lease(ours.block.base + 7, pinned=False) is None
    finally:
        ours.release()


def test_pinned_blocks_that_follow_each_other_need_not_begin_at_a_cell() -> None:
    free = take_block("seed", 200)
    free.release()
    base = free.block.base + CELL_SIZE // 2
    first, second = take_block("", SIZE, pinned=base), take_block("", SIZE, pinned=base + SIZE)
    first.release()
    second.release()


def test_only_a_block_from_a_worse_zone_has_a_warning() -> None:
    best = take_block("seed", SIZE)
    best.release()
    assert best.warning() is None
    worse = HostPorts((1024, 65535)).zones()[-1]
    said = ports.HeldBlock(PortBlock(40000, 1000), [], worse).warning()
    assert said == "its ports 40000-40999 are in the kernel's ephemeral range: no better ones are free"


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
