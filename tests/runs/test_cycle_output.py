"""The part of each cycle in the driver's log."""

from __future__ import annotations

from tests.runs.conftest import FakeRun

from muster.runs.cycle_output import CycleOutput, cycle_output


def test_a_cycle_s_part_ends_where_the_next_one_begins(run: FakeRun) -> None:
    run.begins()
    attempt = run.attempt(0)
    assert cycle_output(attempt, 0) is None and cycle_output(attempt, None) is None
    cycles = [{"cycle": 3, "log_start": 10}, {"cycle": 4, "log_start": 25}, {"cycle": 5, "log_start": None}]
    run.publishes("running", cycles=cycles)
    assert cycle_output(attempt, 3) == CycleOutput(10, 25)
    assert cycle_output(attempt, 4) == cycle_output(attempt, None) == CycleOutput(25, None)
    assert cycle_output(attempt, 5) is None  # its driver has not begun
    assert cycle_output(attempt, 0) is None  # the status has only the last cycles
