"""Sockets that hold ports: no two of them hold the same port, name or cell."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.ports import socket_leases
from muster.ports.guards import CELL_SIZE, bind, cells, hold_cells, hold_name, is_in_a_block, lease_name

# Cells beyond the last port: no agent on this host holds their names, and no test in another process.
FIRST = (4000 + 10 * os.getpid()) * CELL_SIZE


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """Closes the sockets that are put into it."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def port(held: ExitStack) -> int:
    """A free port that the kernel does not give to another program meanwhile."""
    lease = socket_leases.take(f"test_guards {os.getpid()}")
    held.callback(lease.release)
    lease.give()
    return lease.number


def test_a_bound_port_cannot_be_bound_again_until_it_is_closed(port: int) -> None:
    first = bind(port)
    assert first is not None and bind(port) is None
    first.close()
    again = bind(port)
    assert again is not None
    again.close()


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_listener_of_either_family_is_in_the_way(
    held: ExitStack, reuse: bool, family: socket.AddressFamily, address: str
) -> None:
    try:
        listener = held.enter_context(socket.create_server((address, 0), family=family))
    except OSError:
        pytest.skip(f"this machine has no {address}")
    if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("this machine binds only IPv4")
    assert bind(listener.getsockname()[1], reuse) is None


def test_an_ended_connection_is_in_the_way_only_without_reuse(held: ExitStack, port: int) -> None:
    listener = held.enter_context(socket.create_server(("127.0.0.1", port)))
    client = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
    server, _ = listener.accept()
    listener.close()
    server.close()  # the side that closes first keeps the connection in TIME_WAIT
    assert client.recv(1) == b""
    client.close()
    assert bind(port) is None
    reused = bind(port, reuse=True)
    assert reused is not None
    reused.close()


def test_a_name_is_held_by_one_socket_until_it_is_closed() -> None:
    name = f"muster-test-{os.getpid()}"
    first = hold_name(name)
    assert first is not None and hold_name(name) is None
    first.close()
    again = hold_name(name)
    assert again is not None
    again.close()


def test_every_port_has_a_lease_of_its_own() -> None:
    assert len({lease_name(port) for port in range(1024, 65536)}) == 65536 - 1024


@given(start=st.integers(0, 65535), size=st.integers(0, 2000))
def test_the_cells_of_a_block_are_all_that_are_entirely_in_it(start: int, size: int) -> None:
    block = range(start, start + size)
    expected = [
        cell
        for cell in range(start // CELL_SIZE, (start + size) // CELL_SIZE + 1)
        if all(port in block for port in range(cell * CELL_SIZE, (cell + 1) * CELL_SIZE))
    ]
    assert list(cells(block)) == expected


def test_overlapping_blocks_of_different_sizes_are_not_held_together(held: ExitStack) -> None:
    large = hold_cells(range(FIRST, FIRST + 4 * CELL_SIZE))
    assert large is not None and len(large) == 4
    for one in large:
        held.enter_context(one)
    assert hold_cells(range(FIRST - 2 * CELL_SIZE, FIRST + CELL_SIZE)) is None
    beside = hold_cells(range(FIRST - 2 * CELL_SIZE, FIRST))  # no cell of the refused block is held
    assert beside is not None and len(beside) == 2
    for one in beside:
        held.enter_context(one)


def test_a_port_is_in_a_block_while_its_cell_is_held() -> None:
    assert not is_in_a_block(FIRST + 3)
    block = hold_cells(range(FIRST, FIRST + CELL_SIZE))
    assert block is not None
    assert is_in_a_block(FIRST) and is_in_a_block(FIRST + CELL_SIZE - 1) and not is_in_a_block(FIRST + CELL_SIZE)
    for one in block:
        one.close()
    assert not is_in_a_block(FIRST)  # and asking has held nothing
