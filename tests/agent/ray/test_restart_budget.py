"""How often and how soon the GCS is restarted."""

from __future__ import annotations

from muster.agent.ray.restart_budget import MAX_FAILED_STARTS, MAX_RESTARTS, WINDOW_S, RestartBudget


def test_a_gcs_that_had_answered_is_restarted_without_a_pause() -> None:
    budget = RestartBudget()
    for restart in range(1, 4):
        assert budget.spend(float(restart)) == 0.0
        budget.answered()
        assert budget.restarts == restart


def test_the_pause_doubles_while_restarts_fail_and_a_few_of_them_are_the_end() -> None:
    budget = RestartBudget()
    assert [budget.spend(0.0) for _ in range(MAX_FAILED_STARTS + 1)] == [0.0, 0.5, 1.0, 2.0, 4.0, None]
    assert (budget.restarts, budget.refusal) == (MAX_FAILED_STARTS, f"{MAX_FAILED_STARTS} restarts in a row failed")


def test_an_answer_ends_the_row_of_failures() -> None:
    budget = RestartBudget()
    for _ in range(MAX_FAILED_STARTS - 1):
        budget.spend(0.0)
    budget.answered()
    assert [budget.spend(0.0), budget.spend(0.0)] == [0.0, 0.5]


def test_a_gcs_that_ends_again_and_again_is_not_restarted_for_ever() -> None:
    budget = RestartBudget()
    for second in range(MAX_RESTARTS):
        assert budget.spend(float(second)) == 0.0
        budget.answered()
    assert budget.spend(float(MAX_RESTARTS)) is None
    assert budget.refusal == "it was restarted 30 times within 60 minutes"
    assert budget.spend(WINDOW_S) == 0.0  # the first one is an hour ago
