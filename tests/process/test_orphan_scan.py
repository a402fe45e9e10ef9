"""Processes of a lost scope are found by their tag; processes with a copy of the tag are spared."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from tests.conftest import TAG, tagged_processes
from tests.process.conftest import DEADLINE_S, is_alive
from tests.running import wait_for

from muster.process import Exit, Scope, SweepResult, find_tagged, sweep_tagged
from muster.process import orphan_scan as module
from muster.process.orphan_scan import ENV_START, NO_ENVIRONMENT, OWNER_VARIABLE, new_tag, read_environment
from muster.process.proctree import newest_first, read_stat

if TYPE_CHECKING:
    from tests.process.conftest import Words

Live = Callable[..., list[int]]
Python = Callable[[str], list[str]]
Gone = Callable[..., Awaitable[None]]

# The owner and the supervisor are killed at the same time: no process is left that knows their children.
BOTH_KILLED = """
import asyncio, os, sys
from muster.process import Scope
async def main():
    scope = await Scope("owner", tag=sys.argv[1]).open()
    read, write = os.pipe()
    await scope.spawn(["sh", "-c", sys.argv[2]], stdout=write)
    os.read(read, 1)
    os.kill(scope.supervisor_pid, 9)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""

# Each forks its successor and leaves, outside the group that the scope knows; by itself for a minute.
CHAIN = """
import os, time
if os.fork(): os._exit(0)
os.setpgid(0, 0)
end = time.monotonic() + 60
os.write(1, b"ready\\n")
while time.monotonic() < end:
    if os.fork(): os._exit(0)
    time.sleep(0.001)
"""
MISSED_LOOKS = 6


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


def test_what_has_lost_its_owner_and_its_supervisor_is_found_and_ended(python: Python, live: Live) -> None:
    script = "setsid sleep 1000 & (trap '' TERM; sleep 1000) & echo; wait"
    tag = new_tag()
    assert subprocess.run([*python(BOTH_KILLED), tag, script]).returncode == -signal.SIGKILL
    wait_for("both programs to run", lambda: list(tagged_processes(os.environ[TAG]).values()).count("sleep 1000 ") == 2)
    found = find_tagged(tag, adopters=adopters(live()))
    assert sorted(found) == sorted(live()) and len(found) >= 3
    assert sweep_tagged("another-tag", adopters=adopters(live())) == SweepResult(0)
    assert sweep_tagged(tag[:-1], adopters=adopters(live())) == SweepResult(0)  # exactly, or not at all
    assert sorted(find_tagged(tag, adopters=adopters(live()))) == sorted(found)
    swept = sweep_tagged(tag, grace=0.3, adopters=adopters(live()))
    assert swept.ended >= len(found) and swept.left == ()
    assert live() == []


def adopters(pids: list[int]) -> list[int]:
    """Return the adoptive parents of these orphans: init, or its replacement where the tests run."""
    parents = set()
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            parents.add(int(file.read().rpartition(")")[2].split()[1]))
    return sorted(parents - set(pids))


async def test_when_the_supervisor_is_killed_all_is_ended_before_close_returns(words: Words, live: Live) -> None:
    scope = await Scope("test").open()
    script = "trap '' TERM; setsid sleep 1000 & echo; while :; do sleep 1; done"
    process = await scope.spawn(["sh", "-c", script], stdout=words.fd)
    assert await words.line() == ""
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == Exit()
    closed = await asyncio.wait_for(scope.close(1000), DEADLINE_S)
    assert closed.killed >= 2 and live(scope.supervisor_pid) == []


async def test_a_chain_of_forking_and_exiting_processes_is_ended_although_scans_miss_it(
    words: Words, python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: on a busy machine, each pid of a list had ended before it was read, three times in a row."""
    looks = 0

    def late() -> list[int]:
        nonlocal looks
        looks += 1
        pids = newest_first()
        if looks <= MISSED_LOOKS:
            time.sleep(0.1)  # a hundred generations
        return pids

    monkeypatch.setattr(module, "newest_first", late)
    scope = await Scope("test").open()
    await scope.spawn(python(CHAIN), stdout=words.fd)
    assert await words.line() == "ready"
    words.finish()
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    await asyncio.wait_for(scope.close(0), DEADLINE_S)
    # The end of its output: no process has this pipe as its stdout any more.
    assert select.select([words._file], [], [], 0)[0] and words._file.read() == ""


async def test_a_process_that_executes_a_program_during_the_scans_is_ended(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: while a program is executed, the kernel shows no environment, on a busy machine for 50 ms."""
    scope = await Scope("test").open()
    await scope.spawn(["sh", "-c", "setsid sleep 1000 & echo $!"], stdout=words.fd)
    escaped = await words.pid()
    reads = 0

    def environment(pid: int) -> bytes:
        nonlocal reads
        reads += pid == escaped
        return NO_ENVIRONMENT if pid == escaped and reads <= MISSED_LOOKS else read_environment(pid)

    def stat(pid: int) -> list[bytes]:
        fields = read_stat(pid)
        if pid == escaped and reads <= MISSED_LOOKS and fields:
            fields[ENV_START] = b"0"
        return fields

    monkeypatch.setattr(module, "read_environment", environment)
    monkeypatch.setattr(module, "read_stat", stat)
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    await asyncio.wait_for(scope.close(0), DEADLINE_S)
    assert not is_alive(escaped)


async def test_a_program_that_hides_its_environment_is_ended_with_what_is_below_it(words: Words) -> None:
    """As setproctitle does, which writes over it."""
    script = "setsid sleep 1000 & echo $!; wait"
    scope = await Scope("test").open()
    process = await scope.spawn(["env", "-i", "sh", "-c", script], stdout=words.fd)
    below = await words.pid()
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    await asyncio.wait_for(scope.close(0), DEADLINE_S)
    assert not is_alive(process.pid) and not is_alive(below)


async def test_a_process_with_a_copy_of_the_environment_is_spared(
    copy: Callable[..., subprocess.Popen[bytes]], words: Words
) -> None:
    scope = await Scope("test").open()
    process = await scope.spawn(["sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=words.fd)
    escaped = await words.pid()
    bystander = copy(scope.tag)
    wait_for("both to be found", lambda: {process.pid, escaped} <= set(find_tagged(scope.tag)))
    assert bystander.pid not in find_tagged(scope.tag)
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    await asyncio.wait_for(scope.close(0), DEADLINE_S)
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
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    await asyncio.wait_for(scope.close(0), DEADLINE_S)
    await gone(innermost, *live())


async def test_a_sweep_that_could_not_end_all_in_time_returns_those_left(words: Words) -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"], stdout=words.fd)
        assert await words.line() == ""
        swept = await asyncio.to_thread(sweep_tagged, scope.tag, grace=60, within=0.3)
        assert process.pid in swept.left and process.exit is None


async def test_a_tag_belongs_to_one_scope_also_inside_another() -> None:
    async with Scope("one") as one, Scope("other") as other, Scope("named", tag="by-hand") as named:
        assert len({one.tag, other.tag, named.tag}) == 3 and named.tag == "by-hand"
        env = {**os.environ, OWNER_VARIABLE: other.tag}
        ask = ["sh", "-c", f'test "${OWNER_VARIABLE}" = by-hand']
        assert (await (await named.spawn(ask, env=env)).wait()).code == 0
