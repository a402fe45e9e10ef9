"""Ports for services: leased from before the service binds them until they are released."""

from __future__ import annotations

import socket

import pytest

from muster.ports import socket_leases
from muster.ports.blocks import take_block
from muster.ports.ranges import NEMO_RL_BANDS, HostPorts


def test_a_leased_port_is_not_leased_again_before_or_after_the_service_binds_it() -> None:
    first = socket_leases.take("seed")
    second = socket_leases.take("seed")
    first.give()
    third = socket_leases.take("seed")
    assert len({first.number, second.number, third.number}) == 3
    assert not [band for band in NEMO_RL_BANDS if first.number in band]
    for lease in (first, second, third):
        lease.release()
    again = socket_leases.take("seed")
    assert again.number == first.number
    again.release()


def test_a_port_with_a_listener_is_taken() -> None:
    lease = socket_leases.take("seed")
    lease.give()
    assert not lease.taken()
    with socket.create_server(("", lease.number)):
        assert lease.taken()
    lease.release()


def test_a_pinned_port_is_that_or_none() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(OSError, match=r"port \d+ is taken on this host"):
        socket_leases.take("seed", taken.getsockname()[1])


def test_ports_that_are_pinned_for_ray_are_avoided() -> None:
    free = socket_leases.take("seed")
    free.release()
    other = socket_leases.take("seed", avoid=range(free.number, free.number + 5))
    other.release()
    assert other.number not in range(free.number, free.number + 5)


def test_every_port_is_tried_once_and_those_outside_ray_s_blocks_and_the_ephemeral_range_first() -> None:
    tried = [number for _, number in socket_leases.candidates("seed", HostPorts())]
    assert sorted(tried) == list(range(1024, 65536))
    assert set(tried[:1176]) == {*range(1024, 1200), *range(9000, 10000)}
    assert set(tried[-28232:]) == set(range(32768, 61000))


def test_ray_s_blocks_are_elsewhere() -> None:
    block = take_block("seed", 100)
    lease = socket_leases.take("seed")
    assert block.block.base >= 10000 > lease.number
    lease.release()
    block.release()
