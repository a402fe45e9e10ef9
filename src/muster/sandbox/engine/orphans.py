"""What a lost worker leaves behind where it had no pid namespace: processes that fell to the supervisor, ended here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from muster.process import Scope
from muster.process.proctree import descendants, read_processes, send_signal

POLL_S, GIVE_UP_S = 0.02, 5.0


def end_orphans(scope: Scope, known: Collection[int]) -> int:
    """KILL every child of the scope's supervisor that is not known, and all below it, until there is none; how many.

    Not those that write the scope's logs: they end by themselves. With the supervisor lost there is nobody to look
    below;
    its number may be another's, and the scope ends all that it had.
    """
    ended: set[int] = set()
    end = time.monotonic() + GIVE_UP_S
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
                    ended.add(pid)
        time.sleep(POLL_S)
    return len(ended)
