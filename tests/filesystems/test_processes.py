"""Processes whose open files are on a filesystem that fails or hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.filesystems.faulty_filesystem import FaultyFilesystem, faulty_filesystem, why_no_fuse

from muster.process import Scope

pytestmark = pytest.mark.skipif(why_no_fuse() is not None, reason=str(why_no_fuse()))

DEADLINE_S = 120.0


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
