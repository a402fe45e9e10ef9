"""How often files are polled."""

from __future__ import annotations

import pytest

from muster.rundir.poll_pace import MAX_SLOWED_S, POLL_COST_FACTOR, PollPace, slowed


def test_polls_come_less_often_while_nothing_changes_and_at_once_after_news() -> None:
    pace = PollPace(0.1, 0.5)
    assert [pace.after(news=False, seconds=0.0) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert [pace.after(news=True, seconds=0.0) for _ in range(2)] == [0.1, 0.1]
    assert pace.after(news=False, seconds=0.0) == 0.2


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, 0.3), (0.001, 0.3), (0.05, 0.05 * POLL_COST_FACTOR), (60.0, MAX_SLOWED_S)]
)
def test_a_slow_filesystem_is_polled_less_often(seconds: float, expected: float) -> None:
    assert slowed(0.3, seconds) == expected
