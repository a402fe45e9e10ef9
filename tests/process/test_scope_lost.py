"""When the owner or the supervisor is killed, no process survives and no waiter hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.process.conftest import DEADLINE_S, nest
from tests.running import wait_for

from muster.process import Exit, Scope, ScopeWatcher, SpawnError, supervisor

if TYPE_CHECKING:
    from tests.process.conftest import Words

Live = Callable[..., list[int]]
Python = Callable[[str], list[str]]
Gone = Callable[..., Awaitable[None]]

# Starts, in a scope, a process that ignores TERM and one that has left its session; prints that they run.
OWNER = """
import asyncio, os, signal
from muster.process import Scope, become_subreaper, sweep

async def main():
    scope = await Scope("owner", lost_owner_grace=0.2).open()
    read, write = os.pipe()
    await scope.spawn(["sh", "-c", "trap '' TERM; setsid sleep 1000 & echo 1; while :; do sleep 1; done"], stdout=write)
    os.read(read, 1)
    process = await scope.spawn(["sleep", "1000"])
    await then(scope, process)

async def wait_for_ever(scope, process):
    print("running", scope.supervisor_pid, flush=True)
    await asyncio.sleep(1000)

async def lose_the_supervisor_and_sweep(scope, process):
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    exit = await process.wait()
    sweep()
    print(exit, scope.lost, flush=True)
"""


@contextmanager
def owner(argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
async def test_when_the_owner_is_killed_everything_it_started_goes(
    python: Python, live: Live, gone: Gone, signum: signal.Signals
) -> None:
    with owner(python(OWNER + "then = wait_for_ever\nasyncio.run(main())")) as process:
        said = await asyncio.to_thread(process.stdout.readline)
        supervisor_pid = int(said.split()[1])
        # The owner, its supervisor, and the three below it; none is seen while it executes its program.
        wait_for("all to be seen", lambda: len(live()) >= 5 and supervisor_pid in live())
        started = live()
        process.send_signal(signum)
        await gone(*started)


async def test_when_the_supervisor_is_killed_a_subreaping_owner_can_sweep_what_it_kept(
    python: Python, live: Live
) -> None:
    program = OWNER + "then = lose_the_supervisor_and_sweep\nbecome_subreaper()\nasyncio.run(main())"
    with owner(python(program)) as process:
        assert await asyncio.to_thread(process.stdout.readline) == "was lost True\n"
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0
        assert live() == []


async def test_when_the_supervisor_is_killed_waiters_return_and_further_starts_are_refused() -> None:
    told = asyncio.Event()

    class Watcher(ScopeWatcher):
        def supervisor_lost(self) -> None:
            told.set()

    scope = await Scope("test", watcher=Watcher()).open()
    process = await scope.spawn(["sleep", "1000"])
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    assert await asyncio.wait_for(process.wait(), DEADLINE_S) == Exit()
    assert scope.lost
    await asyncio.wait_for(told.wait(), DEADLINE_S)
    with pytest.raises(SpawnError, match="lost"):
        await scope.spawn(["true"])
    await scope.close(grace=0)


async def test_a_start_that_waits_while_the_supervisor_dies_is_refused() -> None:
    scope = await Scope("test").open()
    os.kill(scope.supervisor_pid, signal.SIGSTOP)
    start = asyncio.create_task(scope.spawn(["true"]))
    await asyncio.sleep(0)
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    with pytest.raises(SpawnError):
        await asyncio.wait_for(start, DEADLINE_S)
    await scope.close(grace=0)


async def test_a_supervisor_that_meets_its_own_defect_still_ends_what_it_keeps(
    words: Words, gone: Gone, capfd: pytest.CaptureFixture[str]
) -> None:
    scope = await Scope("test").open()
    await scope.spawn(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=words.fd)
    child = await words.pid()
    scope._socket.send(supervisor.LENGTH.pack(5) + b"?????")  # no owner sends this
    await gone(child, scope.supervisor_pid)
    await scope.close(grace=0)
    capfd.readouterr()  # the supervisor's traceback


async def test_children_do_not_inherit_what_their_owner_ignores_or_blocks(words: Words, python: Python) -> None:
    """Regression: with SIGTERM ignored in the supervisor, no child could ever be asked to leave."""
    ignoring = """
import asyncio, signal
from muster.process import Scope
hidden = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
for signum in hidden: signal.signal(signum, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, hidden)
async def main():
    async with Scope("owner") as scope:
        await (await scope.spawn(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"], stdout=1)).wait()
asyncio.run(main())
"""
    with owner(python(ignoring)) as process:
        said, _ = await asyncio.to_thread(process.communicate, None, DEADLINE_S)
    masks = dict(line.split(":\t") for line in said.splitlines())
    real = (1 << 31) - 1  # the C library keeps two signals above these to itself
    assert {name: int(mask, 16) & real for name, mask in masks.items()} == {"SigIgn": 0, "SigBlk": 0}


async def test_the_supervisor_outlives_signals_meant_for_its_owner(words: Words) -> None:
    """A terminal's Ctrl-C, or a hang-up, reaches whole groups: it must not take the supervisor first."""
    async with Scope("test") as scope:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(scope.supervisor_pid, signum)
        assert (await (await scope.spawn(["true"])).wait()).code == 0
        assert os.getsid(scope.supervisor_pid) == scope.supervisor_pid


async def test_directories_are_removed_for_an_owner_that_was_killed_however_deep_they_are(tmp_path: Path) -> None:
    place = tmp_path / "ours" / "scratch"
    place.mkdir(parents=True)
    nest(place, 1500)  # deeper than Python recurses
    program = """
import asyncio, os, sys
from muster.process import Scope
async def main():
    async with Scope("owner", directories=[sys.argv[1]]) as scope:
        await scope.spawn(["sleep", "1000"])
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    try:
        process = subprocess.run([sys.executable, "-c", program, str(place)])
        assert process.returncode == -9
        wait_for("the directory to be removed, and the empty one around it", lambda: not place.parent.exists())
    finally:
        subprocess.run(["rm", "-rf", place.parent], check=True)  # pytest could not
    assert tmp_path.exists()
