"""The descendants of a process: listed, measured, and killed until none is left."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.forked import value_of

from muster.sandbox.jail import kernel, tree
from muster.sandbox.jail.tree import ExitWatch, TreeReaper
from muster.sandbox.jail.usage import tree_below

DEADLINE_S = 120.0
ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


def sleeper() -> int:
    """Fork a process that sleeps; return its pid."""
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
        os._exit(0)
    return pid


def leaves_one_behind() -> int:
    """Fork a process that exits with 3 and leaves a child in a session of its own; return when the child is there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os.setsid()
            os.write(write, b"x")
            time.sleep(1000)
        os._exit(3)
    os.read(read, 1)
    return pid


def test_children_and_their_children_are_found() -> None:
    def found() -> bool:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            grandchild = sleeper()
            os.write(write, b"%d" % grandchild)
            time.sleep(1000)
        grandchild = int(os.read(read, 20))
        good = tree.children_of(os.getpid()) == [child] and tree_below(os.getpid()) == [child, grandchild]
        for pid in (grandchild, child):
            os.kill(pid, signal.SIGKILL)
        return good

    assert value_of(found)
    assert tree.children_of(2**22 + 1) == []  # there is no such process


@pytest.mark.parametrize("signals", ["by group and list", "by one signal to all"])
def test_what_the_first_child_left_is_killed(signals: str) -> None:
    def reaped() -> list[Any]:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        reaper = TreeReaper(leaves_one_behind(), owns_everything=False)
        if signals == "by one signal to all":  # in the test it must not reach other processes of this user
            reaper._owns_everything = True
            own = os.getpid()
            os.kill = lambda pid, signum: [send(one, signum) for one in tree_below(own)]  # type: ignore[assignment]
        end = time.monotonic() + DEADLINE_S
        while not reaper.first_has_ended and time.monotonic() < end:
            reaper.collect()
        done = reaper.finish()
        code = os.waitstatus_to_exitcode(done.status)
        return [code, done.killed, done.all_gone, done.max_rss_kb > 0, tree_below(os.getpid())]

    send = os.kill
    assert value_of(reaped) == [3, 1, True, True, []]


def test_a_child_that_runs_is_killed_and_its_time_counted() -> None:
    def reaped() -> list[Any]:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            while True:
                pass
        reaper = TreeReaper(pid, owns_everything=False)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11] == "0":
            time.sleep(0.01)  # until the kernel has counted a tick
        reaper.collect()
        assert not reaper.first_has_ended
        done = reaper.finish()
        return [os.waitstatus_to_exitcode(done.status), done.all_gone, done.cpu_s > 0]

    assert value_of(reaped) == [-9, True, True]


def test_a_process_that_cannot_be_killed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def reaped() -> list[Any]:
        pid = sleeper()
        reaper = TreeReaper(pid, owns_everything=False)
        reaper._kill = lambda: 1  # type: ignore[method-assign]  # as one that hangs in the kernel
        done = reaper.finish()
        os.kill(pid, signal.SIGKILL)
        return [done.all_gone, done.status]

    monkeypatch.setattr(tree, "KILL_TIMEOUT_S", 0.02)
    assert value_of(reaped) == [False, signal.SIGKILL]


@pytest.mark.parametrize("has_pidfd", [True, False], ids=["pidfd", "SIGCHLD"])
def test_the_exit_of_a_child_wakes_the_poll(has_pidfd: bool) -> None:
    def woken() -> list[Any]:
        if not has_pidfd:
            del os.pidfd_open
        poll = select.poll()
        watch = ExitWatch(poll)
        rounds = []
        for _ in range(2):
            pid = sleeper()
            watch.watch(pid)
            watch.clear()
            if has_pidfd:
                assert poll.poll(0) == []
            os.kill(pid, signal.SIGKILL)
            rounds.append(len(poll.poll(1000 * DEADLINE_S)))
            os.waitpid(pid, 0)
            watch.unwatch()
        return rounds

    assert value_of(woken) == [1, 1]


def test_tcp_sockets_of_the_network_namespace_are_counted() -> None:
    def count() -> list[int]:
        try:
            kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
            kernel.bring_up_loopback()
        except OSError:
            return []
        before = tree.tcp_sockets()
        kept = [socket.create_server((address, 0), family=family) for family, address in ADDRESSES]
        return [before, tree.tcp_sockets() - before, len(kept)]

    counted = value_of(count)
    if not counted:
        pytest.skip("network namespaces are not allowed here")
    assert counted == [0, 2, 2]
