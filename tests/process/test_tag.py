"""What nobody keeps any more is found by its tag, wherever it went; copies of the tag are left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from tests.process.conftest import is_alive

from muster.process import Exit, Scope, Swept, find_tagged, sweep_tagged
from muster.process.tag import OWNER_VARIABLE

if TYPE_CHECKING:
    from tests.process.conftest import Words

Live = Callable[..., list[int]]
Python = Callable[[str], list[str]]
Gone = Callable[..., Awaitable[None]]

# The owner and the keeper are killed in one moment: nobody is left who knows what they had.
BOTH_KILLED = """
import asyncio, os, sys
from muster.process import Scope
async def main():
    scope = await Scope("owner", tag=sys.argv[1]).open()
    read, write = os.pipe()
    await scope.spawn(["sh", "-c", sys.argv[2]], stdout=write)
    os.read(read, 1)
    os.kill(scope.keeper_pid, 9)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


@pytest.fixture
def copy() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that have another's tag by way of a copied environment."""
    started = []

    def start(tag: str, *argv: str) -> subprocess.Popen[bytes]:
        # A shell of no scope is in between, as Ray's raylet is.
        argv = argv or ("sh", "-c", f"{OWNER_VARIABLE}={tag} sleep 1000 & echo; wait")
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_what_has_lost_its_owner_and_its_keeper_is_found_and_ended(python: Python, live: Live) -> None:
    script = "setsid sleep 1000 & (trap '' TERM; sleep 1000) & echo; wait"
    assert subprocess.run([*python(BOTH_KILLED), "the-tag", script]).returncode == -signal.SIGKILL
    found = find_tagged("the-tag", adopters=adopters(live()))
    assert sorted(found) == sorted(live()) and len(found) >= 3
    assert sweep_tagged("another-tag", adopters=adopters(live())) == Swept(0)
    assert sweep_tagged("the-ta", adopters=adopters(live())) == Swept(0)  # exactly, or not at all
    assert sorted(find_tagged("the-tag", adopters=adopters(live()))) == sorted(found)
    swept = sweep_tagged("the-tag", grace=0.3, adopters=adopters(live()))
    assert swept.ended >= len(found) and swept.left == ()
    assert live() == []


def adopters(pids: list[int]) -> list[int]:
    """Who got these orphans: init, or whoever stands in for it where the tests run."""
    parents = set()
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            parents.add(int(file.read().rpartition(")")[2].split()[1]))
    return sorted(parents - set(pids))


async def test_when_the_keeper_is_killed_all_is_ended_before_close_returns(words: Words, live: Live) -> None:
    scope = await Scope("test").open()
    script = "trap '' TERM; setsid sleep 1000 & echo; while :; do sleep 1; done"
    process = await scope.spawn(["sh", "-c", script], stdout=words.fd)
    assert await words.line() == ""
    os.kill(scope.keeper_pid, signal.SIGKILL)
    assert await asyncio.wait_for(process.wait(), 20) == Exit()
    closed = await asyncio.wait_for(scope.close(1000), 60)
    assert closed.killed >= 2 and live(scope.keeper_pid) == []


async def test_a_program_that_hides_its_environment_is_ended_with_what_is_below_it(words: Words) -> None:
    """As setproctitle does, which writes over it."""
    script = "setsid sleep 1000 & echo $!; wait"
    scope = await Scope("test").open()
    process = await scope.spawn(["env", "-i", "sh", "-c", script], stdout=words.fd)
    below = await words.pid()
    os.kill(scope.keeper_pid, signal.SIGKILL)
    await asyncio.wait_for(scope.close(0), 60)
    assert not is_alive(process.pid) and not is_alive(below)


async def test_a_copy_of_the_environment_is_nobody_s_to_end(
    copy: Callable[..., subprocess.Popen[bytes]], words: Words
) -> None:
    scope = await Scope("test").open()
    process = await scope.spawn(["sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=words.fd)
    escaped = await words.pid()
    bystander = copy(scope.tag)
    assert {process.pid, escaped} <= set(find_tagged(scope.tag))
    assert bystander.pid not in find_tagged(scope.tag)
    os.kill(scope.keeper_pid, signal.SIGKILL)
    await asyncio.wait_for(scope.close(0), 60)
    assert bystander.poll() is None and not is_alive(escaped)


async def test_a_scope_inside_a_lost_one_ends_its_own(python: Python, words: Words, live: Live, gone: Gone) -> None:
    inner = """
import asyncio
from muster.process import Scope
async def main():
    async with Scope("inner", lost_owner_grace=0.1) as scope:
        process = await scope.spawn(["sleep", "1000"])
        print(process.pid, flush=True)
        await process.wait()
asyncio.run(main())
"""
    scope = await Scope("outer").open()
    await scope.spawn(python(inner), stdout=words.fd)
    innermost = await words.pid()
    assert innermost not in find_tagged(scope.tag)
    os.kill(scope.keeper_pid, signal.SIGKILL)
    await asyncio.wait_for(scope.close(0), 60)
    await gone(innermost, *live())


async def test_a_sweep_that_has_not_been_able_to_end_all_in_time_says_who_is_left(words: Words) -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], stdout=words.fd)
        assert await words.line() == ""
        swept = await asyncio.to_thread(sweep_tagged, scope.tag, grace=60, within=0.3)
        assert process.pid in swept.left and process.exit is None


async def test_a_tag_is_its_scope_s_alone_also_inside_another() -> None:
    async with Scope("one") as one, Scope("other") as other, Scope("named", tag="by-hand") as named:
        assert len({one.tag, other.tag, named.tag}) == 3 and named.tag == "by-hand"
        env = {**os.environ, OWNER_VARIABLE: other.tag}
        ask = ["sh", "-c", f'test "${OWNER_VARIABLE}" = by-hand']
        assert (await (await named.spawn(ask, env=env)).wait()).code == 0
