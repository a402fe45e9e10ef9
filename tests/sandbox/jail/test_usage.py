"""The memory and CPU time of a process tree, with what no process's resident memory shows."""

from __future__ import annotations

import mmap
import os
import socket
import time
from typing import Any

from tests.sandbox.forked import value_of

from muster.sandbox.jail import usage

MB = 1 << 20


def test_memory_of_a_process_is_its_own_and_shared_memory() -> None:
    def grown() -> list[int]:
        before = usage.resident(os.getpid())
        private, shared = bytearray(64 * MB), mmap.mmap(-1, 32 * MB)
        for page in range(0, 64 * MB, 4096):
            private[page] = 1
            shared[page % (32 * MB)] = 1
        after = usage.resident(os.getpid())
        return [after[0] - before[0], after[1] - before[1]]

    private, shared = value_of(grown)
    assert 64 * MB <= private < 80 * MB and 32 * MB <= shared < 40 * MB
    assert usage.resident(2**22 + 1) == (0, 0) and usage.pages_of(2**22 + 1) == 0


def test_shared_memory_counts_although_it_is_in_no_resident_set() -> None:
    def counted() -> list[int]:
        own, pages = usage.resident(os.getpid())[0], usage.pages_of(os.getpid())
        shared = mmap.mmap(-1, 256 * MB)
        for page in range(0, 256 * MB, 4096):
            shared[page] = 1
        shared.madvise(mmap.MADV_DONTNEED)
        here = [os.getpid()]
        return [usage.resident(os.getpid())[1], usage.memory_of_tree(here, pages, own, 0)]

    resident, total = value_of(counted)
    assert resident < 32 * MB and total >= 256 * MB


def test_memory_that_two_processes_share_counts_once() -> None:
    def counted() -> int:
        own, pages = usage.resident(os.getpid())[0], usage.pages_of(os.getpid())
        shared = mmap.mmap(-1, 256 * MB)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        total = usage.memory_of_tree([os.getpid(), child], pages, own, 0)
        os.close(write)
        os.waitpid(child, 0)
        shared.close()
        return total

    assert 256 * MB <= value_of(counted) < 400 * MB


def test_every_socket_counts_with_what_it_can_hold() -> None:
    def counted() -> list[Any]:
        processes = [os.getpid(), 2**22 + 1]
        before = usage.sockets_of_processes(processes, 1000)  # those of the tests' process
        pairs = [socket.socketpair() for _ in range(100)]
        found = usage.sockets_of_processes(processes, 1000)
        return [found - before == 2 * len(pairs), usage.sockets_of_namespace("self") >= 200]

    assert value_of(counted) == [True, True]
    assert usage.memory_of_tree([], 0, 0, usage.FREE_SOCKETS + 10) == 10 * usage.SOCKET_BYTES


def test_cpu_time_includes_that_of_children_that_have_ended() -> None:
    def used() -> float:
        before = usage.cpu_of([os.getpid()])
        child = os.fork()
        if child == 0:
            end = time.process_time() + 0.3
            while time.process_time() < end:
                pass
            os._exit(0)
        os.waitpid(child, 0)
        return usage.cpu_of([os.getpid(), 2**22 + 1]) - before

    assert value_of(used) >= 0.25
