"""The table of built-in checks, and what a job selects of it."""

from __future__ import annotations

from muster.lifecycle.node_checks import NODE_CHECKS, repeated_checks, selected_checks


def test_each_level_contains_the_ones_before() -> None:
    none, basic, standard, all_checks = (selected_checks(name, {}) for name in ("none", "basic", "standard", "all"))
    assert none == {} and basic.keys() < standard.keys() < all_checks.keys() == {check.name for check in NODE_CHECKS}


def test_checks_are_added_left_out_and_given_a_threshold() -> None:
    chosen = selected_checks("basic", {"disk": False, "gpu-xid": True, "memory": 5.0})
    assert chosen == {"memory": 5.0, "gpu-count": None, "gpu-xid": None}


def test_a_check_can_be_selected_without_a_level() -> None:
    assert selected_checks("none", {"clock": True}) == {"clock": 5.0}


def test_only_checks_below_the_last_level_are_repeated() -> None:
    assert "dcgm" not in repeated_checks(selected_checks("all", {}))
    assert repeated_checks(selected_checks("standard", {})) == selected_checks("standard", {})


def test_names_are_unique_and_units_belong_to_thresholds() -> None:
    assert len({check.name for check in NODE_CHECKS}) == len(NODE_CHECKS)
    assert all((check.threshold is None) == (not check.unit) == ("{}" not in check.fails_when) for check in NODE_CHECKS)
