"""An event loop whose timers do not count the time in which its process was stopped.

A deadline says how long something may take that runs, and a job that was suspended did not run. So this clock is the
one for timers of all kinds: those of asyncio, the deadlines of the run's state machine, silence of a peer. Only leases,
the times in heartbeats and the intervals between them use the monotonic clock itself, since other nodes may have gone
on. On a busy host a process may get the processor only every few seconds: heartbeats that counted one second of each of
these gaps would come too late.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from muster.process.running_time import STALL_S, RunningTime

T = TypeVar("T")


class _WakingSelector(selectors.DefaultSelector):
    """Returns at least twice within STALL_S, so that the loop looks at its clock: a longer gap was a stop."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(STALL_S / 2 if timeout is None else min(timeout, STALL_S / 2))


class RunningLoop(asyncio.SelectorEventLoop):
    """`time()` is the time for which this process ran, from an arbitrary moment on."""

    def __init__(self) -> None:
        self._running_time = RunningTime()
        super().__init__(_WakingSelector())

    def time(self) -> float:
        return self._running_time.running(time.monotonic())

    @property
    def stopped_s(self) -> float:
        """The seconds for which this process was stopped so far."""
        self.time()
        return self._running_time.stopped


def running_now() -> float:
    """Return the time of the running loop: in an agent, the time for which this process ran."""
    return asyncio.get_running_loop().time()


async def sleep_by_monotonic_clock(seconds: float) -> None:
    """Sleep for this time, including the time in which this process was stopped."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, STALL_S / 2))


def stopped_seconds() -> float:
    """Return for how long this process was stopped so far; 0 in a loop that does not measure it."""
    loop = asyncio.get_running_loop()
    return loop.stopped_s if isinstance(loop, RunningLoop) else 0.0


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine in such a loop, as `asyncio.run` does."""
    loop = RunningLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            _cancel_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
