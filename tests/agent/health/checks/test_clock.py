"""The node's clock."""

from __future__ import annotations

from pathlib import Path

from muster.agent.health.checks.clock import check_clock, judge_clock
from muster.agent.health.checks.finding import CheckedNode, Verdict, failed


def test_a_clock_that_is_ahead_or_behind_is_a_failure() -> None:
    ahead = judge_clock(before=100.0, stamp=90.0, after=100.1, most=5.0)
    assert ahead == failed("the clock differs from that of the run directory's server by 9.0 s")
    assert judge_clock(before=100.0, stamp=120.1, after=100.1, most=5.0).verdict is Verdict.FAILED


def test_a_slow_server_and_times_in_whole_seconds_are_no_difference() -> None:
    assert judge_clock(before=100.9, stamp=100.0, after=100.9, most=0.0).verdict is Verdict.PASSED
    assert judge_clock(before=100.0, stamp=130.0, after=130.0, most=0.0).verdict is Verdict.PASSED


def test_the_clock_of_this_machine_is_that_of_its_disk(tmp_path: Path) -> None:
    assert check_clock(CheckedNode({}, "/tmp", str(tmp_path)), 5.0).verdict is Verdict.PASSED
    assert list(tmp_path.iterdir()) == []
