"""Reaps what falls to this process as a subreaper when a scope ends: its supervisor, and what that has left.

Each by its number: a wait for any child would take the exit status of one that belongs to somebody else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

FIRST_LOOK_S, LONGEST_LOOK_S = 0.005, 1.0  # a supervisor leaves within milliseconds; what it leaves may take hours

_waiting: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive


def reap_later(supervisor: int, left: Iterable[int] = ()) -> None:
    """Reap the supervisor when it has ended, then what it leaves: that is nobody's child but ours from then on."""
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
