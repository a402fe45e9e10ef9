"""Helpers for tests that start processes: read the output of children line by line, and list the live ones."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import TAG, tagged_processes

DEADLINE_S = 120.0  # for events that take milliseconds; a busy machine is no reason to fail


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.fixture
def live() -> Callable[..., list[int]]:
    """The live processes that were started, by whatever detour, from this test; without those named."""
    return lambda *besides: [pid for pid in tagged_processes(os.environ[TAG]) if pid not in besides]


@pytest.fixture
def gone() -> Callable[..., Awaitable[None]]:
    """Waits until every one of the pids is gone."""

    async def wait(*pids: int) -> None:
        end = time.monotonic() + DEADLINE_S
        while left := [pid for pid in pids if is_alive(pid)]:
            assert time.monotonic() < end, f"still alive: {left}"
            await asyncio.sleep(0.02)

    return wait


class Words:
    """A pipe: `fd` is a child's stdout, `line` reads its next line, `rest` all output until its end."""

    def __init__(self) -> None:
        read, self.fd = os.pipe()
        self._file = os.fdopen(read)

    async def line(self) -> str:
        return (await asyncio.wait_for(asyncio.to_thread(self._file.readline), DEADLINE_S)).rstrip("\n")

    async def pid(self) -> int:
        return int(await self.line())

    async def rest(self) -> str:
        self.finish()
        return await asyncio.wait_for(asyncio.to_thread(self._file.read), DEADLINE_S)

    def finish(self) -> None:
        if self.fd != -1:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        self.finish()
        self._file.close()


@pytest.fixture
def words() -> Iterator[Words]:
    pipe = Words()
    yield pipe
    pipe.close()


@pytest.fixture
def python() -> Callable[[str], list[str]]:
    """The command line of a child in Python, with Muster importable and nothing else to slow it down."""
    return lambda source: [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{source}"]


def nest(directory: Path, depth: int) -> None:
    """Directories in directories, too deep for a path."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
