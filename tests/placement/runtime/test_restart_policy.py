"""When a failed replica is restarted, without Ray."""

from __future__ import annotations

import pytest

from muster.placement.runtime.restart_policy import Budget, Policy


def test_pauses_double_up_to_their_most_and_end_with_the_budget() -> None:
    budget = Budget(Policy(max_restarts=5, backoff=1.0, max_backoff=5.0, window=1000))
    assert [budget.spend(now) for now in range(6)] == [1.0, 2.0, 4.0, 5.0, 5.0, None]
    assert budget.restarts == 5


def test_restarts_before_the_window_do_not_count() -> None:
    budget = Budget(Policy(max_restarts=1, window=10))
    assert [budget.spend(now) for now in (0, 9, 10, 11, 20)] == [1.0, None, 1.0, None, 1.0]


def test_a_budget_of_none_never_restarts() -> None:
    assert Budget(Policy(max_restarts=0)).spend(0) is None
    with pytest.raises(ValueError, match="window must not be negative"):
        Policy(window=-1)
