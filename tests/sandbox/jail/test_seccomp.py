"""The seccomp filter, run as the kernel would run it, and once by the kernel itself."""

from __future__ import annotations

import errno
import os
import socket
import struct

import pytest
from tests.sandbox.forked import value_of

from muster.sandbox.jail import kernel, seccomp


def decide(program: bytes, number: int, arguments: tuple[int, ...] = (), machine: str = "x86_64") -> int:
    """What the kernel would do: the filter run on one call."""
    data = struct.pack("=IIQ6Q", number, seccomp.ARCHITECTURES.get(machine, 0x40000003), 0, *(*arguments, *[0] * 6)[:6])
    at, value = 0, 0
    while True:
        code, when_true, when_false, operand = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return operand
        elif code == 0x54:
            value &= operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += when_true if holds else when_false


def test_the_filter_refuses_by_number_argument_and_machine() -> None:
    program = seccomp.filter_for("x86_64", [seccomp.AF_UNIX], memory_files=False, others=[1])
    refused, allowed = seccomp.ERRNO | errno.EPERM, seccomp.ALLOW
    assert decide(program, 0) == allowed  # read
    assert [decide(program, number) for number in (101, 165, 272, 321, 425, 319)] == [refused] * 6
    assert decide(program, 41, (1, 1)) == allowed  # socket(AF_UNIX)
    assert decide(program, 41, (2, 1)) == seccomp.ERRNO | errno.EACCES
    assert decide(program, 56, (0x01200011,)) == allowed  # fork
    assert decide(program, 56, (0x10000011,)) == refused  # with a new user namespace
    assert decide(program, 435) == seccomp.ERRNO | errno.ENOSYS
    assert decide(program, 16, (0, 0x5412)) == refused  # TIOCSTI
    assert decide(program, 16, (0, 0x5401)) == allowed
    assert decide(program, 0x40000000 + 41) == seccomp.KILL_PROCESS  # x32
    assert decide(program, 41, machine="i386") == seccomp.KILL_PROCESS


def test_in_a_private_network_only_tcp_is_there_and_buffers_stay_small() -> None:
    program = seccomp.filter_for("x86_64", seccomp.LOCAL_FAMILIES, memory_files=False, others=[1])
    refused = seccomp.ERRNO | errno.EACCES
    for family in (2, 10):
        assert decide(program, 41, (family, 1)) == decide(program, 41, (family, 1 | 0x80000)) == seccomp.ALLOW
        assert [decide(program, 41, (family, kind)) for kind in (2, 3, 5)] == [refused] * 3
    assert [decide(program, 41, (1, kind)) for kind in (1, 2, 5)] == [seccomp.ALLOW] * 3
    assert [decide(program, 41, (family, 1)) for family in (16, 17, 40)] == [refused] * 3
    assert [decide(program, 54, (3, 1, option)) for option in (7, 8)] == [seccomp.ERRNO] * 2  # succeeds, does nothing
    assert decide(program, 54, (3, 1, 2)) == decide(program, 54, (3, 6, 7)) == seccomp.ALLOW


def test_with_the_network_on_every_socket_may_be_made() -> None:
    program = seccomp.filter_for("aarch64", None, memory_files=True, others=None)
    assert decide(program, 198, (2, 1), "aarch64") == seccomp.ALLOW
    assert decide(program, 279, (), "aarch64") == seccomp.ALLOW
    assert decide(program, 117, (), "aarch64") == seccomp.ERRNO | errno.EPERM


PRLIMIT, AFFINITY, SETPRIORITY, IOPRIO = 302, 203, 141, 251  # on x86_64
PROCESS, GROUP, USER_S = 0, 1, 2  # of setpriority; ioprio_set counts from 1


def test_the_filter_keeps_limits_and_scheduling_of_the_worker_from_its_programs() -> None:
    program = seccomp.filter_for("x86_64", [], memory_files=False, others=[1])
    refused, allowed = seccomp.ERRNO | errno.EPERM, seccomp.ALLOW
    for number in (PRLIMIT, AFFINITY, 142, 144, 314):
        assert [decide(program, number, (pid,)) for pid in (0, 1, 2)] == [allowed, refused, allowed]
    for number, first in ((SETPRIORITY, 0), (IOPRIO, 1)):
        for kind, whose, then in (
            (PROCESS, 0, allowed),
            (PROCESS, 1, refused),
            (PROCESS, 2, allowed),
            (GROUP, 0, allowed),
            (GROUP, 7, refused),
            (USER_S, 0, refused),
            (USER_S, 1000, refused),
        ):
            assert decide(program, number, (kind + first, whose)) == then, (number, kind, whose)


def test_where_all_workers_are_one_user_a_program_can_change_only_itself() -> None:
    program = seccomp.filter_for("x86_64", [], memory_files=False, others=None)
    refused, allowed = seccomp.ERRNO | errno.EPERM, seccomp.ALLOW
    assert [decide(program, PRLIMIT, (pid,)) for pid in (0, 1, 77)] == [allowed, refused, refused]
    assert [decide(program, SETPRIORITY, (PROCESS, pid)) for pid in (0, 77)] == [allowed, refused]


@pytest.mark.skipif(not seccomp.is_known_here(), reason="no filter for this machine")
def test_the_kernel_applies_the_filter() -> None:
    def attempts() -> list[object]:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install(seccomp.filter_for(kernel.MACHINE, [seccomp.AF_UNIX], memory_files=False, others=None))
        found: list[object] = []
        for do in (
            lambda: socket.socket(socket.AF_UNIX).close(),
            lambda: socket.socket(socket.AF_INET),
            lambda: kernel.unshare(kernel.CLONE_NEWUTS),
            lambda: os.memfd_create("x"),
            lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
            lambda: os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0)),
        ):
            try:
                found.append(do())
            except OSError as error:
                found.append(error.errno)
        return found

    assert value_of(attempts) == [None, errno.EACCES, errno.EPERM, errno.EPERM, None, errno.EPERM]


def test_every_refused_call_is_refused_on_both_machines() -> None:
    for column, machine in enumerate(seccomp.ARCHITECTURES):
        program = seccomp.filter_for(machine, None, memory_files=True, others=None)
        numbers = [pair[column] for pair in seccomp.CALLS.values() if pair[column] is not None]
        answers = {decide(program, number, (), machine) for number in numbers if number is not None}
        assert answers == {seccomp.ERRNO | errno.EPERM} and len(numbers) == len(set(numbers))
