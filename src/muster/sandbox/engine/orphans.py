"""Processes that a lost worker without a pid namespace left behind: the supervisor adopts them, and we kill them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from muster.process import Scope
from muster.process.proctree import descendants, read_processes, send_signal

POLL_S, KILL_TIMEOUT_S = 0.02, 5.0


def kill_orphans(scope: Scope, known: Collection[int]) -> int:
    """Kill unknown children of the scope's supervisor and their descendants until none is left; return the number.

    Processes that write the scope's logs are spared: they exit by themselves. If the supervisor is lost, nothing is
    killed here: its pid may belong to another process by now, and the scope kills everything it started.
    """
    killed: set[int] = set()
    end = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < end and not scope.lost:
        processes = read_processes()
        spared = {*known, *scope.copying}
        strays = [pid for pid, (parent, _) in processes.items() if parent == scope.supervisor_pid and pid not in spared]
        if not strays:
            break
        for stray in strays:
            for pid in (stray, *descendants(stray, processes)):
                if pid not in (os.getpid(), *known):
                    send_signal(pid, signal.SIGKILL)
                    killed.add(pid)
        time.sleep(POLL_S)
    return len(killed)
