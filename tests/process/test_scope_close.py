"""Closing a scope: all its processes, also those that tried to escape, are dead when `close` returns."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.process.conftest import DEADLINE_S

from muster.process import Exit, Scope, ScopeWatcher, SpawnError

if TYPE_CHECKING:
    from tests.process.conftest import Words

Live = Callable[..., list[int]]
Python = Callable[[str], list[str]]
Gone = Callable[..., Awaitable[None]]

LONG_GRACE_S = 60.0  # never used up where everything leaves when asked

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1; done"

# Forks twice, with a new session in between, as daemons do; ignores TERM; prints its pid.
DAEMON = """
import os, signal, time
if os.fork(): os.wait(); os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(1000)
"""

# A tree of 1 + 3 + 9 + 27 + 81 processes, each waiting for ever.
TREE = """
import os, time
for level in range(4):
    if not any(os.fork() == 0 for _ in range(3)): break
else:
    os.write(1, b"x")
time.sleep(1000)
"""

# Every process forks its successor and leaves at once: a list of pids is out of date before it is complete.
RUNAWAY = """
import os, time
end = time.monotonic() + 120
os.write(1, b"ready\\n")
while time.monotonic() < end:
    if os.fork(): os._exit(0)
"""

# Looks like a zombie in /proc, but another thread goes on.
WITHOUT_MAIN_THREAD = """
import ctypes, os, threading, time
def go_on():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z": time.sleep(0.01)
    os.write(1, b"ready\\n")
    time.sleep(1000)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)
"""


async def test_a_child_that_handles_term_is_given_its_time_and_finishes(words: Words) -> None:
    script = "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", script], stdout=words.fd)
        assert await words.line() == "ready"
        closed = await scope.close(grace=LONG_GRACE_S)
        assert process.exit == Exit(code=3)
        assert closed.killed == 0
        assert closed.seconds < LONG_GRACE_S / 2  # the rest of the grace is not waited for
        assert await words.line() == "saved"


async def test_a_child_that_ignores_term_is_killed_after_the_grace(words: Words, live: Live) -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", STUBBORN], stdout=words.fd)
        assert await words.line() == "ready"
        closed = await scope.close(grace=0.3)
        assert process.exit == Exit(signal=signal.SIGKILL)
        assert closed.killed >= 1
        assert closed.seconds >= 0.3
        assert live(scope.supervisor_pid) == []


async def test_without_grace_no_term_is_sent_first(words: Words) -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(["sh", "-c", "trap 'exit 0' TERM; echo ready; sleep 1000 & wait"], stdout=words.fd)
        assert await words.line() == "ready"
        await scope.close(grace=0)
        assert process.exit == Exit(signal=signal.SIGKILL)


async def test_a_grandchild_in_a_new_session_is_ended(words: Words, gone: Gone) -> None:
    async with Scope("test") as scope:
        await scope.spawn(["sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=words.fd)
        escaped = await words.pid()
        closed = await scope.close(grace=LONG_GRACE_S)
        assert closed.killed == 0  # it was adopted, asked, and left
        await gone(escaped)


async def test_a_double_forked_daemon_that_ignores_term_is_ended(words: Words, python: Python, live: Live) -> None:
    async with Scope("test") as scope:
        starter = await scope.spawn(python(DAEMON), stdout=words.fd)
        daemon = await words.pid()
        assert await starter.wait() == Exit(code=0)
        assert daemon in live()
        closed = await scope.close(grace=0.2)
        assert closed.killed == 1
        assert live(scope.supervisor_pid) == []


async def test_processes_whose_parent_has_left_are_ended(words: Words, live: Live) -> None:
    async with Scope("test") as scope:
        parent = await scope.spawn(["sh", "-c", "sleep 1000 & sleep 1000 & echo $!"], stdout=words.fd)
        orphan = await words.pid()
        assert await parent.wait() == Exit(code=0)
        assert orphan in live()
        await scope.close(grace=LONG_GRACE_S)
        assert live(scope.supervisor_pid) == []


async def test_a_large_tree_is_ended(words: Words, python: Python, live: Live) -> None:
    async with Scope("test") as scope:
        await scope.spawn(python(TREE), stdout=words.fd)
        words.finish()
        leaves = await asyncio.wait_for(asyncio.to_thread(words._file.read, 81), DEADLINE_S)
        assert len(leaves) == 81
        await scope.close(grace=0)
        assert live(scope.supervisor_pid) == []


async def test_a_chain_of_forking_and_exiting_processes_is_ended(words: Words, python: Python, live: Live) -> None:
    async with Scope("test") as scope:
        await scope.spawn(python(RUNAWAY), stdout=words.fd)
        assert await words.line() == "ready"
        closed = await scope.close(grace=0)
        assert closed.seconds < 60  # it was caught; by itself it would have ended after 120
        assert live(scope.supervisor_pid) == []


async def test_a_process_whose_main_thread_has_ended_is_ended(words: Words, python: Python) -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(python(WITHOUT_MAIN_THREAD), stdout=words.fd)
        assert await words.line() == "ready"
        await asyncio.wait_for(scope.close(grace=0.1), DEADLINE_S)
        assert process.exit is not None
        assert not os.path.exists(f"/proc/{process.pid}")


async def test_stopped_processes_are_ended(words: Words, live: Live) -> None:
    async with Scope("test") as scope:
        process = await scope.spawn(["sleep", "1000"])
        process.signal(signal.SIGSTOP)
        await scope.close(grace=0.1)
        assert live(scope.supervisor_pid) == []


async def test_an_adopted_daemon_s_end_is_reported_with_its_pid(words: Words) -> None:
    reported: asyncio.Queue[tuple[int, Exit]] = asyncio.Queue()

    class Watcher(ScopeWatcher):
        def orphan_exited(self, pid: int, exit: Exit) -> None:
            reported.put_nowait((pid, exit))

    async with Scope("test", watcher=Watcher()) as scope:
        await (await scope.spawn(["sh", "-c", "sleep 1000 & echo $!"], stdout=words.fd)).wait()
        daemon = await words.pid()
        assert reported.empty()
        os.kill(daemon, signal.SIGKILL)
        assert await asyncio.wait_for(reported.get(), DEADLINE_S) == (daemon, Exit(signal=signal.SIGKILL))


async def test_closing_twice_or_by_two_at_once_is_one_closing() -> None:
    scope = await Scope("test").open()
    await scope.spawn(["sleep", "1000"])
    first, second = await asyncio.gather(scope.close(LONG_GRACE_S), scope.close(LONG_GRACE_S))
    assert first == second == await scope.close(0)


async def test_closing_one_scope_does_not_affect_another() -> None:
    async with Scope("one") as one, Scope("other") as other:
        process = await other.spawn(["sleep", "1000"])
        await one.spawn(["sleep", "1000"])
        await one.close(0)
        assert process.exit is None
        assert (await (await other.spawn(["true"])).wait()).code == 0


async def test_nothing_can_be_started_in_a_closed_scope() -> None:
    scope = await Scope("test").open()
    await scope.close(0)
    with pytest.raises(SpawnError, match="closed"):
        await scope.spawn(["true"])


async def test_a_start_while_the_scope_closes_is_refused_instead_of_waiting_for_ever(words: Words, live: Live) -> None:
    scope = await Scope("test").open()
    await scope.spawn(["sh", "-c", STUBBORN], stdout=words.fd)
    assert await words.line() == "ready"
    closing = asyncio.create_task(scope.close(grace=0.3))
    await asyncio.sleep(0)  # the request to close is on its way
    with pytest.raises(SpawnError, match="closed"):
        await asyncio.wait_for(scope.spawn(["sleep", "1000"]), DEADLINE_S)
    await closing
    assert live(scope.supervisor_pid) == []


async def test_a_second_close_with_less_grace_cuts_the_first_one_short(tmp_path: Path) -> None:
    scope = await Scope("impatient").open()
    stubborn = await scope.spawn(
        ["bash", "-c", "trap '' TERM; touch ready; while :; do sleep 0.1; done"], cwd=str(tmp_path)
    )
    while not (tmp_path / "ready").exists():
        await asyncio.sleep(0.02)
    first = asyncio.create_task(scope.close(grace=600))
    await asyncio.sleep(0)  # the first request is on its way
    await asyncio.wait_for(scope.close(grace=0), DEADLINE_S)
    await first
    assert (await stubborn.wait()).signal == signal.SIGKILL
