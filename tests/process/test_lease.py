"""A lease on the processes of an owner: its expiry kills them, whatever state the owner is in."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.process.conftest import is_alive
from tests.running import wait_for

from muster.process import Scope, lease
from muster.process.lease import ProcessLease
from muster.process.lease_enforcer import RESUME_GRACE_S
from muster.process.proctree import read_stat

IGNORES_TERM = ["bash", "-c", "trap '' TERM; sleep 1000 & wait; sleep 1000"]
OWNER = """
import asyncio, sys
from muster.process import Scope, lease
async def main():
    held = lease.hold()
    scope = await Scope("test", directories=sys.argv[1:]).open()
    process = await scope.spawn(["sleep", "1000"])
    held.renew(1.0)
    print(scope.supervisor_pid, process.pid, flush=True)
    while True:
        held.renew(1.0)
        await asyncio.sleep(0.1)
asyncio.run(main())
"""


@pytest.fixture
def held() -> Iterator[ProcessLease]:
    yield lease.hold()
    lease.held = None


async def test_nothing_happens_while_a_lease_is_renewed_and_everything_ends_with_it(held: ProcessLease) -> None:
    scope = await Scope("test").open()
    process = await scope.spawn(IGNORES_TERM)
    held.renew(1000.0)
    assert not held.expired and process.exit is None
    held.renew(0.0)
    assert (await process.wait()).signal == signal.SIGKILL
    assert held.expired
    await scope.close(1000.0)


async def test_a_grace_that_was_given_ends_with_the_lease(held: ProcessLease) -> None:
    held.renew(1000.0)
    scope = await Scope("test").open()
    process = await scope.spawn(IGNORES_TERM)
    held.renew(0.5)
    closed = await scope.close(1000.0)
    assert closed.seconds < 100 and process.exit is not None


def test_what_a_stopped_owner_had_started_is_killed_and_its_directory_goes_with_it(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch" / "of-owner"
    scratch.mkdir(parents=True)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(scratch)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        supervisor, child = map(int, owner.stdout.readline().split())
        os.kill(owner.pid, signal.SIGSTOP)
        wait_for("the child to be gone", lambda: not is_alive(child))
        assert scratch.exists() and is_alive(supervisor)  # the owner may go on, and need it
    finally:
        owner.kill()
        owner.communicate()
    wait_for("the supervisor to be gone", lambda: not is_alive(supervisor))
    assert not scratch.exists()


def state_of(pid: int) -> str:
    """Return the state of a process, such as T for a stopped one; empty once it is gone."""
    fields = read_stat(pid)
    return fields[0].decode() if is_alive(pid) and fields else ""


class SuspendedOwner:
    """An owner whose lease of one second has expired while it, its supervisor and its child were stopped."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.supervisor, self.child = map(int, self.process.stdout.readline().split())
        for pid in (self.process.pid, self.supervisor, self.child):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.5)  # the claim is about time that passes while they are stopped

    def resume_without_the_owner(self) -> None:
        """Continue the supervisor, and later the child, as something does that resumes one process after the other."""
        os.kill(self.supervisor, signal.SIGCONT)
        time.sleep(0.1)
        os.kill(self.child, signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        os.kill(self.supervisor, signal.SIGCONT)
        self.process.communicate()


@pytest.fixture
def suspended() -> Iterator[SuspendedOwner]:
    owner = SuspendedOwner()
    yield owner
    owner.end()
    wait_for("the child to be gone", lambda: not is_alive(owner.child))


def test_a_suspended_child_goes_on_once_its_resumed_owner_has_renewed_the_lease(suspended: SuspendedOwner) -> None:
    suspended.resume_without_the_owner()
    wait_for("the child to be stopped again", lambda: state_of(suspended.child) == "T")
    os.kill(suspended.process.pid, signal.SIGCONT)
    wait_for("the child to go on", lambda: state_of(suspended.child) == "S")


def test_a_suspended_child_is_killed_if_its_owner_does_not_renew_the_lease(suspended: SuspendedOwner) -> None:
    suspended.resume_without_the_owner()
    began = time.monotonic()
    wait_for("the child to be gone", lambda: not is_alive(suspended.child))
    assert time.monotonic() - began > RESUME_GRACE_S / 2


def test_a_killed_process_fences_the_lease_until_it_is_cleared(held: ProcessLease) -> None:
    held.renew(1000.0)
    assert not held.fenced
    asyncio.run(expire(held))
    assert held.expired and held.fenced
    held.clear()
    assert not held.fenced


async def expire(held: ProcessLease) -> None:
    scope = await Scope("test").open()
    process = await scope.spawn(["sleep", "1000"])
    await asyncio.sleep(1.0)  # the supervisor has seen that the lease lasts
    held.renew(0.0)
    await process.wait()
    await scope.close(0.0)


CHATTY = """
import asyncio, os, time
from muster.process import Scope, lease
async def main():
    held = lease.hold()
    scope = await Scope("test").open()
    busy = await scope.spawn(["bash", "-c", "while :; do (true & ); done"])  # each end is reported to its owner
    held.renew(2.0)
    print(busy.pid, flush=True)
    time.sleep(1000)
asyncio.run(main())
"""


HALF_A_MESSAGE = """
import asyncio, time
from muster.process import Scope, lease
from muster.process.supervisor import LENGTH
async def main():
    held = lease.hold()
    scope = await Scope("test").open()
    process = await scope.spawn(["sleep", "1000"])
    held.renew(2.0)
    scope._socket.send(LENGTH.pack(100))
    print(process.pid, flush=True)
    time.sleep(1000)
asyncio.run(main())
"""


def test_an_owner_that_stops_in_the_middle_of_a_message_cannot_hold_up_the_end_of_the_lease() -> None:
    owner = subprocess.Popen([sys.executable, "-c", HALF_A_MESSAGE], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        wait_for("what it started to be gone", lambda: not is_alive(child))
    finally:
        owner.kill()
        owner.communicate()


def test_an_owner_that_does_not_read_cannot_hold_up_the_end_of_the_lease() -> None:
    owner = subprocess.Popen([sys.executable, "-c", CHATTY], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        busy = int(owner.stdout.readline())
        wait_for("what it started to be gone", lambda: not is_alive(busy))
    finally:
        owner.kill()
        owner.communicate()


def test_a_lease_that_is_no_longer_used_keeps_no_descriptor() -> None:
    lease = ProcessLease()
    fd = lease.fd
    assert "muster-lease" in os.readlink(f"/proc/self/fd/{fd}")
    del lease
    gc.collect()
    assert not os.path.exists(f"/proc/self/fd/{fd}") or "muster-lease" not in os.readlink(f"/proc/self/fd/{fd}")
