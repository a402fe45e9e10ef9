"""Reaps the processes that a subreaper adopts when a scope ends: the scope's supervisor, and what that leaves.

Each is waited for by its pid: a wait for any child would take the exit status of a process that other code waits for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

FIRST_LOOK_S, LONGEST_LOOK_S = 0.005, 1.0  # a supervisor leaves within milliseconds; what it leaves may take hours

_waiting: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive


def reap_later(supervisor: int, left: Iterable[int] = ()) -> None:
    """Reap the supervisor when it has ended, then what it leaves: this process adopts that when the supervisor ends."""
    task = asyncio.get_running_loop().create_task(_reap(supervisor, tuple(left)))
    _waiting.add(task)
    task.add_done_callback(_waiting.discard)


async def _reap(supervisor: int, left: tuple[int, ...]) -> None:
    for pid in (supervisor, *left):
        pause = FIRST_LOOK_S
        while not reap(pid):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK_S)


def reap(pid: int) -> bool:
    """False while it lives; True when it was reaped, or is not this process's child."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
