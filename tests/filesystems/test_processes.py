"""Supervisors and event loops continue although open files are on a filesystem that fails or hangs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.filesystems.faulty_filesystem import FaultyFilesystem, faulty_filesystem, why_no_fuse

from muster.agent.leader.driver import Driver
from muster.agent.leader.inbox import Inbox
from muster.process import Log, Scope
from muster.process.log_reader import tail_lines

pytestmark = pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse()))

DEADLINE_S = 120.0
STDERR = 2
LONG_HANG_S = 30.0  # an event loop that waits for the server misses everything that happens meanwhile


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[FaultyFilesystem]:
    with faulty_filesystem(tmp_path / "filesystem") as filesystem:
        yield filesystem


async def test_a_log_that_fails_when_it_is_closed_does_not_end_the_supervisor(filesystem: FaultyFilesystem) -> None:
    """As NFS reports with `close` that it could not write; every process of the scope would be killed."""
    log = open(filesystem.path / "log", "wb")  # noqa: SIM115, closed by hand because that fails here
    filesystem.inject("EIO", "flush")
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", "sleep 0.2 >/dev/null"], stdout=log.fileno())
        assert (await asyncio.wait_for(process.wait(), DEADLINE_S)).code == 0
        assert not scope.lost
    filesystem.clear()
    log.close()


async def test_a_driver_runs_although_its_log_fails_when_it_is_closed(filesystem: FaultyFilesystem) -> None:
    driver = Driver(Log(str(filesystem.path / "log"), 1 << 20), Inbox(), 0)
    filesystem.inject("EIO", "flush")
    assert (await asyncio.wait_for(driver.run(["true"], dict(os.environ), "/"), DEADLINE_S)).code == 0
    assert filesystem.hits()[0] > 0


async def test_a_program_does_not_get_sigpipe_if_its_log_cannot_be_examined_at_first(
    filesystem: FaultyFilesystem,
) -> None:
    log = Log(str(filesystem.path / "log"), 1 << 20)
    async with Scope("test") as scope:
        opened = log.open()
        filesystem.inject("EIO", "getattr", seconds=1.0, spreads=True)
        process = await scope.spawn(["sh", "-c", "sleep 0.5; echo text; echo more"], log=log, opened_log=opened)
        assert (await asyncio.wait_for(process.wait(), DEADLINE_S)).code == 0
        assert filesystem.hits()[0] > 0
        filesystem.clear()
        os.close(opened)
    assert log.tail() == "text\nmore\n"


def test_a_log_whose_file_fails_when_it_is_closed_is_read(filesystem: FaultyFilesystem) -> None:
    (filesystem.path / "log").write_text("text\n")
    filesystem.inject("EIO", "flush")
    assert tail_lines(str(filesystem.path / "log")) == ["text"] and filesystem.hits()[0] > 0


async def test_the_event_loop_continues_while_a_scope_opens_and_the_filesystem_hangs(
    filesystem: FaultyFilesystem,
) -> None:
    """The new process closes its copies of this process's files, which waits for the server."""
    with open(filesystem.path / "log", "wb") as log:
        log.write(b"text")
        log.flush()
        filesystem.inject("hang", "flush")
        scope = Scope("test")
        opening = asyncio.ensure_future(scope.open())
        while not filesystem.hits()[0]:
            await asyncio.sleep(0.01)
        assert not opening.done()  # and this line is reached
        filesystem.clear()
        await asyncio.wait_for(opening, DEADLINE_S)
        await scope.close(grace=0.0)


async def test_the_event_loop_continues_while_the_first_process_of_a_scope_closes_its_stderr(
    filesystem: FaultyFilesystem,
) -> None:
    """The stderr of an agent is its node's log; the process that forks the supervisor closes its copy when it exits."""
    saved, log = os.dup(STDERR), os.open(filesystem.path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, STDERR, inheritable=True)
    os.close(log)
    try:
        filesystem.inject("hang", "flush", seconds=LONG_HANG_S)
        scope = Scope("test")
        opening = asyncio.ensure_future(scope.open())
        assert await seconds_in_which_the_loop_sees_a_hang(filesystem) < LONG_HANG_S / 2
        assert not opening.done()
        filesystem.clear()
        await asyncio.wait_for(opening, DEADLINE_S)
        await scope.close(grace=0.0)
    finally:
        filesystem.clear()
        os.dup2(saved, STDERR, inheritable=True)
        os.close(saved)


async def test_the_event_loop_continues_while_a_process_starts_whose_log_hangs(filesystem: FaultyFilesystem) -> None:
    """The owner of a scope closes its descriptor of the log once the supervisor has received it."""
    async with Scope("test") as scope:
        filesystem.inject("hang", "flush", seconds=LONG_HANG_S)
        starting = asyncio.ensure_future(scope.spawn(["true"], log=Log(str(filesystem.path / "log"), limit=1 << 20)))
        assert await seconds_in_which_the_loop_sees_a_hang(filesystem) < LONG_HANG_S / 2
        filesystem.clear()
        process = await asyncio.wait_for(starting, DEADLINE_S)
        assert (await asyncio.wait_for(process.wait(), DEADLINE_S)).code == 0


async def seconds_in_which_the_loop_sees_a_hang(filesystem: FaultyFilesystem) -> float:
    """Return the time until the event loop has noticed a call that hangs, and gone on for another second."""
    start = time.monotonic()
    while not filesystem.hits()[0]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)  # what follows the call in the process under test
    return time.monotonic() - start
