"""Inside a sandbox of gVisor: the user of programs, memory in use, buffers, and the engine's clock."""

from __future__ import annotations

import os
import resource
import socket
import time

import pytest
from tests.sandbox.forked import value_of

from muster.sandbox.jail import gvisor
from muster.sandbox.jail.gvisor import (
    CLOCK_MARGIN_S,
    ProgramUser,
    clock_difference,
    count_buffers,
    limit_address_space,
    used_memory,
)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_program_becomes_an_ordinary_user_for_good() -> None:
    def change() -> list[object]:
        ProgramUser(54321).enforce()
        try:
            os.setuid(0)
        except PermissionError:
            return [os.getresuid(), os.getresgid(), os.getgroups(), "refused"]
        return []

    assert value_of(change) == [[54321] * 3, [54321] * 3, [], "refused"]


def test_an_address_space_is_limited_only_in_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def limit() -> int:
        limit_address_space(64 << 20)
        return resource.getrlimit(resource.RLIMIT_AS)[0]

    assert value_of(limit) == resource.getrlimit(resource.RLIMIT_AS)[0]
    monkeypatch.setattr(gvisor, "_is_inside", True)
    assert 64 << 20 < value_of(limit) < 1 << 46


def test_memory_in_use_is_what_the_kernel_reports_as_not_free() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < used_memory() < 2 * total


def test_each_socket_and_pipe_counts_once() -> None:
    before = count_buffers([os.getpid()], 1000)
    one, other = socket.socketpair()
    copy = one.dup()
    read, write = os.pipe()
    try:
        assert count_buffers([os.getpid(), os.getpid()], 1000) == before + 3  # both ends of the pipe are one
    finally:
        for opened in (one, other, copy):
            opened.close()
        os.close(read)
        os.close(write)


def test_the_time_of_the_engine_is_known_although_the_clock_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisor, "_offset_s", 0.0)
    gvisor.set_clock(clock_difference() + 5000)
    ahead = gvisor.engine_time() - time.monotonic() - 5000
    assert CLOCK_MARGIN_S / 2 < ahead < CLOCK_MARGIN_S + 1
