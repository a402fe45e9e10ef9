"""Results of checks: the worst and the best, and values that differ between nodes."""

from __future__ import annotations

from muster.doctor.check_result import CheckResult, by_value, outliers, worst
from muster.doctor.check_result import best as best_of

SKIPPED, PASSED, WARNED, FAILED = (
    CheckResult("x", "skip", ""),
    CheckResult("x", "pass", ""),
    CheckResult("x", "warn", ""),
    CheckResult("x", "fail", ""),
)


def test_one_failure_is_the_worst_and_nothing_at_all_was_skipped() -> None:
    assert worst([PASSED, FAILED, WARNED]) == "fail"
    assert worst([SKIPPED, PASSED]) == "pass"
    assert worst([]) == "skip"


def test_of_several_partitions_the_best_counts() -> None:
    assert best_of([FAILED, WARNED, PASSED]) is PASSED
    assert best_of([FAILED, WARNED]) is WARNED


def test_a_value_on_which_nodes_agree_is_shown_once_and_others_with_their_nodes() -> None:
    assert by_value({"n1": "3.12", "n2": "3.12"}) == "3.12"
    assert by_value({"n1": "3.12", "n2": "3.12", "n3": "3.9"}) == "3.12 on n[1-2]; 3.9 on n3"


def test_the_hosts_that_differ_from_most_others_are_outliers() -> None:
    assert outliers({"n1": "a", "n2": "b", "n3": "b"}) == ("n1",)
    assert outliers({"n1": "a", "n2": "a"}) == outliers({}) == ()
