"""A process that hangs in the kernel, so that KILL does not end it, is reported after a limited wait."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.hung_filesystem import WAITS_IN, Hung, hung_filesystem
from tests.running import wait_for

from muster.process import Exit, Scope, ScopeWatcher
from muster.process.proctree import kill_is_pending
from muster.process.unkillable import STUCK_S, LeftoverProcess

if TYPE_CHECKING:
    from tests.process.conftest import Words

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounting a filesystem that hangs needs root and FUSE"
)
DEADLINE_S = 100.0  # what takes 12 s on an idle machine

# A child that opens a file which never opens.
LEAVES_ONE = "cat {path} & echo $!; sleep 1000"
# It has adopted such a child, as an agent does when a supervisor is killed.
SUBREAPER = """
import os, signal, subprocess, sys
from muster.process import become_subreaper, sweep
become_subreaper()
hangs = subprocess.Popen(["sh", "-c", "cat %s & echo $!"], stdout=subprocess.PIPE, text=True)
pid = hangs.stdout.readline().strip()
hangs.wait()  # the shell, which would be swept, too
print(pid, flush=True)
other = subprocess.Popen(["sleep", "1000"])
sys.stdin.readline()
print("swept", sweep(), flush=True)
"""


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Hung]:
    with hung_filesystem(tmp_path / "hung") as filesystem:
        yield filesystem


async def test_a_scope_closes_all_the_same_and_tells_process_state_and_wait_channel(
    hung: Hung, words: Words, live: Callable[..., list[int]], gone: Callable[..., Awaitable[None]]
) -> None:
    told: list[LeftoverProcess] = []

    class Watcher(ScopeWatcher):
        def processes_left(self, left: Sequence[LeftoverProcess]) -> None:
            told.extend(left)

    scope = await Scope("test", watcher=Watcher()).open()
    await scope.spawn(["sh", "-c", LEAVES_ONE.format(path=hung.path)], stdout=words.fd)
    child = await words.pid()
    itself = await scope.spawn(["cat", hung.path + "-2"])
    wait_for("both to hang", lambda: hung.holds(child) and hung.holds(itself.pid))
    closed = await asyncio.wait_for(scope.close(grace=0.5), DEADLINE_S)
    try:
        assert sorted(left.pid for left in closed.left) == sorted([child, itself.pid])
        assert told == list(closed.left)
        assert closed.seconds >= STUCK_S
        for left in closed.left:
            assert (left.name, left.state, left.wchan) == ("cat", "D", WAITS_IN)
            assert f"process {left.pid} (cat) could not be ended" in str(left)
            assert "state D" in str(left) and WAITS_IN in str(left)
        assert sorted(live(scope.supervisor_pid)) == sorted([child, itself.pid])  # the shell, and all else, is gone
        assert itself.exit == Exit(signal=signal.SIGKILL) and str(itself.exit) == "could not be ended"
    finally:
        hung.release()
    await gone(child, itself.pid)


async def test_a_scope_that_has_lost_its_supervisor_closes_all_the_same(
    hung: Hung, gone: Callable[..., Awaitable[None]]
) -> None:
    scope = await Scope("test").open()
    hangs = await scope.spawn(["cat", hung.path])
    wait_for("it to hang", lambda: hung.holds(hangs.pid))
    os.kill(scope.supervisor_pid, 9)
    closed = await asyncio.wait_for(scope.close(grace=0), DEADLINE_S)
    assert [(left.pid, left.state) for left in closed.left] == [(hangs.pid, "D")]
    hung.release()
    await gone(hangs.pid)


def test_the_last_sweep_of_a_subreaper_ends_all_the_same(hung: Hung, python: Callable[[str], list[str]]) -> None:
    argv = python(SUBREAPER % hung.path)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        hangs = int(process.stdout.readline())
        wait_for("it to hang", lambda: hung.holds(hangs))
        os.kill(hangs, 9)
        wait_for("the KILL to be pending", lambda: kill_is_pending(hangs))
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "swept 2\n"  # another process had killed it before: it gets little time
        hung.release()
