"""However a scope, its owner or its supervisor ends: no process of a hard-to-kill family survives."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from tests.process.conftest import DEADLINE_S
from tests.running import wait_for

Live = Callable[..., list[int]]
Python = Callable[[str], list[str]]

# A launcher, a child in its group, one in a new session, a daemon, a child that ignores TERM, and one that keeps
# forking its successor and exiting (for half a minute, in its own group).
FAMILY = """
import os, signal, subprocess, sys, time
sleep = ["sleep", "1000"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
deaf = [sys.executable, "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execvp("sleep", sleep)
    os._exit(0)
subprocess.Popen(deaf)
if os.fork() == 0:
    os.setpgid(0, 0)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if os.fork(): os._exit(0)
        time.sleep(0.001)
    os._exit(0)
print("complete", flush=True)
time.sleep(1000)
"""
STEADY = 5  # processes that keep their pid; the runaway is seen or not

OWNER = """
import asyncio, os, signal, sys
from muster.process import Scope

async def main():
    scope = await Scope("owner", lost_owner_grace=0.3, cgroup=sys.argv[1] == "cgroup").open()
    read, write = os.pipe()
    process = await scope.spawn([sys.executable, "-S", "-c", sys.argv[2]], stdout=write)
    assert os.read(read, 8) == b"complete"
    print(scope.supervisor_pid, os.path.exists(scope.cgroup.directory or ""), flush=True)
    if sys.argv[3] == "close":
        await scope.close(0.3)
    elif sys.argv[3] == "supervisor killed":
        os.kill(scope.supervisor_pid, signal.SIGKILL)
        await scope.close(0.3)
    else:
        await asyncio.sleep(1000)
    print("over", os.path.exists(scope.cgroup.directory or ""), flush=True)
    sys.stdin.readline()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("close", "no cgroup"),
        ("close", "cgroup"),
        ("supervisor killed", "no cgroup"),
        ("supervisor killed", "cgroup"),
        ("owner killed", "no cgroup"),
        ("owner killed", "cgroup"),
        ("owner asked to leave", "no cgroup"),
    ],
)
def test_nothing_survives(event: str, kind: str, python: Python, live: Live) -> None:
    argv = [*python(OWNER), kind, FAMILY, event]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        supervisor, in_cgroup = owner.stdout.readline().split()
        if kind == "cgroup" and in_cgroup == "False":
            owner.kill()
            pytest.skip("no control group of version 2 may be made here")
        if event.startswith("owner"):
            wait_for("the family", lambda: len(live(owner.pid, int(supervisor))) >= STEADY)
            owner.send_signal(signal.SIGKILL if event == "owner killed" else signal.SIGTERM)
        else:
            assert owner.stdout.readline() == "over False\n"
            assert everyone_is_gone(live, 0, owner.pid, int(supervisor))  # at once: `close` promises that
    assert everyone_is_gone(live, DEADLINE_S)


def everyone_is_gone(live: Live, seconds: float, *besides: int) -> bool:
    """Scan several times: one scan may miss a process that has just been forked."""
    deadline = time.monotonic() + seconds
    while True:
        if not any(live(*besides) for _ in range(3)):
            return True
        if time.monotonic() >= deadline:
            print({pid: os.path.exists(f"/proc/{pid}") for pid in live(*besides)})
            return False
        time.sleep(0.02)
