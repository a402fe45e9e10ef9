"""How long a process was stopped, from the times at which it looked at a clock."""

from __future__ import annotations

import pytest

from muster.process.running_time import STALL_S, RunningTime


def test_a_process_that_looks_regularly_was_never_stopped() -> None:
    running = RunningTime()
    assert [running.observe(now) for now in (100.0, 100.5, 101.5)] == [0.0, 0.0, 0.0]
    assert running.stopped == 0.0


def test_a_gap_is_reported_once_and_counted() -> None:
    running = RunningTime()
    running.observe(100.0)
    assert running.observe(160.0) == 60.0
    assert running.observe(160.1) == 0.0
    assert running.stopped == 60.0 - STALL_S


def test_the_running_clock_hardly_advances_in_a_gap() -> None:
    running = RunningTime()
    assert running.running(100.0) == 100.0
    assert running.running(3700.0) == 100.0 + STALL_S
    assert running.running(3700.5) == pytest.approx(100.5 + STALL_S)


def test_the_running_clock_goes_on_where_every_step_takes_long() -> None:
    running = RunningTime()
    times = [running.running(now) for now in range(0, 1000, 10)]
    assert times[-1] >= 99 * STALL_S
