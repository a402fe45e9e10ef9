"""The end of a process: code or signal, its cause, and kills for lack of memory."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.running import wait_for

from muster.process import ANOTHER, ITSELF, OWNER, Exit, Scope
from muster.process.cgroup import own_directory

if TYPE_CHECKING:
    from tests.process.conftest import Words

POLITE = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("script", "exit", "by"),
    [
        ("exit 0", Exit(code=0), ITSELF),
        ("exit 7", Exit(code=7), ITSELF),
        ("kill -SEGV $$", Exit(signal=signal.SIGSEGV), ITSELF),
        ("kill -KILL $$", Exit(signal=signal.SIGKILL), ANOTHER),  # the kernel does not report the sender
    ],
)
async def test_what_ended_by_itself_or_by_a_strange_signal_says_so(script: str, exit: Exit, by: str) -> None:
    async with Scope("test") as scope:
        ended = await (await scope.spawn(["sh", "-c", script])).wait()
    assert (ended, ended.ended_by, ended.oom_kills, ended.out_of_memory) == (exit, by, 0, False)


async def test_a_signal_is_attributed_to_the_owner_or_to_another(words: Words) -> None:
    async with Scope("test") as scope:
        first, second = [await scope.spawn(["sleep", "1000"]) for _ in range(2)]
        os.kill(first.pid, signal.SIGTERM)
        second.signal(signal.SIGTERM)
        assert [(await each.wait()).ended_by for each in (first, second)] == [ANOTHER, OWNER]
        polite = await scope.spawn(["sh", "-c", POLITE], stdout=words.fd)
        assert await words.line() == "ready"
        polite.signal(signal.SIGTERM)
        ended = await polite.wait()
        assert (ended, ended.ended_by) == (Exit(code=3), OWNER)


async def test_processes_ended_with_their_scope_were_ended_by_the_owner(words: Words) -> None:
    scope = await Scope("test").open()
    polite = await scope.spawn(["sh", "-c", POLITE], stdout=words.fd)
    assert await words.line() == "ready"
    quick = await scope.spawn(["sleep", "1000"])
    await scope.close(60)
    stubborn = await Scope("test").open()
    killed = await stubborn.spawn(["sleep", "1000"])
    await stubborn.close(0)
    ends = [await each.wait() for each in (polite, quick, killed)]
    assert ends == [Exit(code=3), Exit(signal=15), Exit(signal=9)]
    assert [end.ended_by for end in ends] == [OWNER] * 3


def test_an_unobserved_end_is_attributed_to_no_one() -> None:
    assert (Exit().ended_by, Exit().out_of_memory) == (None, False)


def test_the_text_of_an_end_for_lack_of_memory() -> None:
    killed = Exit(signal=9, ended_by=ANOTHER, oom_kills=1)
    assert killed.out_of_memory and str(killed) == "was ended by SIGKILL (out of memory)"
    ours = Exit(signal=9, ended_by=OWNER, oom_kills=1)
    assert not ours.out_of_memory and str(ours) == "was ended by SIGKILL"
    assert "for lack of memory" in str(Exit(code=1, ended_by=ITSELF, oom_kills=2))
    assert str(Exit(code=0, ended_by=ITSELF, oom_kills=2)) == "exited with 0"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory group of version 1 with little in it, where this user may make one."""
    base = own_directory("memory")
    if base is None or not os.access(base, os.W_OK):
        pytest.skip("no memory control group of version 1 may be made here")
    directory = Path(base, f"muster-test-{uuid.uuid4().hex[:8]}")
    directory.mkdir()
    (directory / "memory.limit_in_bytes").write_text(str(128 << 20))
    yield directory
    wait_for("the group to be empty", lambda: not (directory / "cgroup.procs").read_text())
    directory.rmdir()


def test_a_process_that_the_kernel_kills_for_want_of_memory_says_so_and_its_neighbour_does_not(
    small_group: Path, python: Callable[[str], list[str]]
) -> None:
    program = """
import asyncio, os, sys
from muster.process import Scope
async def main():
    async with Scope("test") as scope:
        neighbour = await scope.spawn(["sleep", "1000"])
        greedy = await scope.spawn([sys.executable, "-S", "-c", "x = bytearray(1 << 30); input()"])
        exit = await greedy.wait()
        print(exit, exit.ended_by, exit.out_of_memory)
        os.kill(neighbour.pid, 15)
        later = await scope.spawn(["sh", "-c", "kill -KILL $$"])
        print((await neighbour.wait()).out_of_memory, (await later.wait()).out_of_memory)
asyncio.run(main())
"""
    enter = ["sh", "-c", f'echo $$ > {small_group}/cgroup.procs; exec "$@"', "-", *python(program)]
    said = subprocess.run(enter, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said == "was ended by SIGKILL (out of memory) another True\nFalse False\n"
