"""Processes that a lost worker left with the supervisor are killed, and no others."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.running import wait_for

from muster.process import Log, Scope, ScopeWatcher
from muster.process.proctree import read_process, read_processes
from muster.sandbox.engine.orphans import kill_orphans

LEAVES_ONE = ["sh", "-c", "setsid sleep 1000 & exit 0"]


def children(scope: Scope) -> set[int]:
    return {pid for pid, (parent, _) in read_processes().items() if parent == scope.supervisor_pid}


async def test_orphans_are_ended_and_the_known_and_the_logs_are_not(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), limit=1000)
    async with Scope("test", lost_owner_grace=0) as scope:
        known = await scope.spawn(["sh", "-c", "echo up; sleep 1000"], log=log)
        await (await scope.spawn(LEAVES_ONE)).wait()
        (copier,) = scope.copying
        orphan = await asyncio.to_thread(wait_for, "the orphan", lambda: children(scope) - {known.pid, copier})
        assert await asyncio.to_thread(kill_orphans, scope, {known.pid}) == 1
        assert children(scope) == {known.pid, copier} and read_process(orphan.pop()) is None
    assert log.tail() == "up\n" and not scope.copying


async def test_nothing_is_ended_below_a_supervisor_that_was_lost(tmp_path: Path) -> None:
    """Its number may be another's by then: here it is made that of a process with a child."""
    lost = asyncio.Event()

    class Watcher(ScopeWatcher):
        def supervisor_lost(self) -> None:
            lost.set()

    watched = Scope("test", lost_owner_grace=0, watcher=Watcher())
    async with Scope("other", lost_owner_grace=0) as other, watched as scope:
        kept = await other.spawn(["sleep", "1000"])
        os.kill(scope.supervisor_pid, signal.SIGKILL)
        await asyncio.wait_for(lost.wait(), 60)
        scope.supervisor_pid = other.supervisor_pid
        assert await asyncio.to_thread(kill_orphans, scope, set()) == 0
        assert kept.exit is None and read_process(kept.pid) is not None
