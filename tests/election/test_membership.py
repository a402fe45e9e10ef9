"""What members know of their run: which of two charters is the newer one, how they travel, and the times."""

from __future__ import annotations

import json

from muster.election.membership import FENCE_S, KILL_S, LEASE_S, Charter, first_charter


def charter(term: int = 0, version: int = 0, cycle: int = 0, roster: tuple[int, ...] = (0, 1, 2)) -> Charter:
    return Charter(term, 0, cycle, version, frozenset(roster))


def test_to_begin_with_every_node_of_the_allocation_counts() -> None:
    assert first_charter(3, lead=1) == Charter(0, 1, 0, 0, frozenset({0, 1, 2}))


def test_a_charter_of_a_later_term_is_newer_and_in_a_term_one_of_a_higher_version() -> None:
    assert charter(term=1).newer(charter(version=5)).term == 1
    assert charter(version=5).newer(charter(term=1)).term == 1
    assert charter(version=5, roster=(0, 1)).newer(charter(version=4)).roster == {0, 1}


def test_the_newer_of_two_keeps_the_higher_cycle_of_both() -> None:
    assert charter(term=1, cycle=1).newer(charter(cycle=2)).cycle == 2


def test_a_charter_comes_out_of_a_message_as_it_went_in() -> None:
    told = Charter(3, 4, 2, 17, frozenset({0, 1, 2, 4, 7, 8}), frozenset({3, 5}), frozenset(range(9)))
    assert Charter.from_record(json.loads(json.dumps(told.as_record()))) == told


def test_ten_thousand_neighbours_take_no_more_room_in_a_message_than_three() -> None:
    assert len(json.dumps(first_charter(10_000).as_record())) < 150


def test_while_a_new_roster_is_not_known_to_be_in_force_the_one_before_counts_too() -> None:
    assert charter().rosters == (frozenset({0, 1, 2}),)
    changing = Charter(0, 0, 0, 1, frozenset({0, 1}), before=frozenset({0, 1, 2}))
    assert changing.rosters == (frozenset({0, 1}), frozenset({0, 1, 2}))


def test_a_member_waits_for_the_lease_and_the_kill_though_its_clock_is_fast_and_the_lead_s_is_slow() -> None:
    assert FENCE_S / 1.01 > (LEASE_S + KILL_S) / 0.99
