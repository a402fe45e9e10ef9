"""Reap the processes that a subreaper adopts when a scope ends: the scope's supervisor, and its leftovers.

Each is reaped by its pid: a wait for any child would take the exit status of a process that other code waits for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

FIRST_POLL_S, LONGEST_POLL_S = 0.005, 1.0  # a supervisor exits within milliseconds; leftovers may take hours

_tasks: set[asyncio.Task[None]] = set()  # the event loop holds only weak references


def reap_later(supervisor: int, left: Iterable[int] = ()) -> None:
    """Reap the supervisor in the background, then the pids in `left`, which this process adopts at its end."""
    task = asyncio.get_running_loop().create_task(_reap(supervisor, tuple(left)))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _reap(supervisor: int, left: tuple[int, ...]) -> None:
    for pid in (supervisor, *left):
        pause = FIRST_POLL_S
        while not reap(pid):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL_S)


def reap(pid: int) -> bool:
    """Return False while the process lives; True if it was reaped, or is not a child of this process."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
