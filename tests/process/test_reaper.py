"""A subreaper reaps the supervisors of its closed scopes, and no other child: other code waits for those."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

SUBREAPER = """
import asyncio, os, signal, subprocess, time
from muster.process import Log, Scope, become_subreaper
from muster.process.proctree import read_stat

def children():
    stats = {int(pid): read_stat(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}
    return {pid: stat[0] for pid, stat in stats.items() if stat and int(stat[1]) == os.getpid()}

async def until_only(other):
    deadline = time.monotonic() + 60
    while (left := children()) != {other: b"Z"} and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    print("children besides the other:", [state for pid, state in left.items() if pid != other], flush=True)

async def main():
    become_subreaper()
    other = subprocess.Popen(["sh", "-c", "exit 7"])  # not a scope's: its exit code must not be taken by another
    for _ in range(10):
        async with Scope("closed", lost_owner_grace=0.0) as scope:
            await scope.spawn(["sleep", "1000"], log=Log(os.devnull, limit=1000))
    await until_only(other.pid)
    scope = await Scope("lost").open()
    await scope.spawn(["sleep", "1000"])
    await (await scope.spawn(["sh", "-c", "setsid sleep 1000 & exit 0"])).wait()
    os.kill(scope.supervisor_pid, signal.SIGKILL)
    await scope.close(0)
    await until_only(other.pid)
    print("other:", other.wait(), flush=True)

asyncio.run(main())
"""


def test_no_zombie_supervisor_is_left_of_closed_and_lost_scopes(python: Callable[[str], list[str]]) -> None:
    done = subprocess.run(python(SUBREAPER), capture_output=True, text=True, timeout=180)
    lines = ["children besides the other: []", "children besides the other: []", "other: 7"]
    assert done.stdout.splitlines() == lines, done.stdout + done.stderr
