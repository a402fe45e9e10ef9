"""The event loop of an agent: its timers do not count the time in which the process was stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from muster.agent import event_loop
from muster.agent.event_loop import running_now, stopped_seconds
from muster.process import running_time
from muster.process.running_time import STALL_S

STOP_S = 4.0
PROGRAM = """
import asyncio, time
from muster.agent import event_loop
async def main():
    began = time.monotonic()
    print("ready", flush=True)
    await asyncio.sleep(3.0)
    print(time.monotonic() - began, event_loop.stopped_seconds(), flush=True)
event_loop.run(main())
"""


def test_a_sleep_takes_longer_by_the_time_in_which_the_process_was_stopped() -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
        os.kill(program.pid, signal.SIGSTOP)
        time.sleep(STOP_S)
        os.kill(program.pid, signal.SIGCONT)
        slept, stopped = map(float, program.stdout.readline().split())
    finally:
        program.kill()
        program.communicate()
    assert stopped > STOP_S - STALL_S - 0.5
    assert slept > 3.0 + stopped - 0.5


def test_a_sleep_by_the_monotonic_clock_includes_gaps_in_which_the_process_did_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_time, "STALL_S", 0.02)
    monkeypatch.setattr(event_loop, "STALL_S", 0.02)

    async def main() -> tuple[int, float]:
        sleeping, gaps = asyncio.ensure_future(event_loop.sleep_by_monotonic_clock(0.1)), 0
        while not sleeping.done():
            time.sleep(0.12)
            gaps += 1
            await asyncio.sleep(0)
        return gaps, stopped_seconds()

    gaps, stopped = event_loop.run(main())
    assert gaps <= 4 and stopped > 0.1  # one before the task begins, two that are longer, one until its turn; not six


def test_a_loop_that_waits_for_long_was_not_stopped() -> None:
    async def wait() -> float:
        began = running_now()
        await asyncio.sleep(2 * STALL_S)
        assert running_now() - began >= 2 * STALL_S - 0.01
        return stopped_seconds()

    assert event_loop.run(wait()) < STALL_S


def test_the_tasks_that_are_left_are_cancelled() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("cancelled")

    async def main() -> int:
        main.task = asyncio.ensure_future(forever())  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return 7

    assert event_loop.run(main()) == 7
    assert ended == ["cancelled"]


def test_an_error_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        event_loop.run(fail())


async def test_another_loop_measures_no_stops() -> None:
    assert stopped_seconds() == 0.0
    assert running_now() == pytest.approx(time.monotonic(), abs=1.0)
