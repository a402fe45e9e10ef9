"""Memberships: which of two is newer, and the fencing times."""

from __future__ import annotations

from muster.election.follower import CLAIM_POLL_S, ELECTION_POLL_S
from muster.election.membership import Membership, first_membership
from muster.election.timing import FENCE_S, LEASE_KILL_S, LEASE_S


def membership(term: int = 0, version: int = 0, cycle: int = 0, roster: tuple[int, ...] = (0, 1, 2)) -> Membership:
    return Membership(term, 0, cycle, version, frozenset(roster))


def test_at_the_start_every_node_of_the_allocation_votes() -> None:
    assert first_membership(3, leader=1) == Membership(0, 1, 0, 0, frozenset({0, 1, 2}))


def test_a_membership_of_a_later_term_is_newer_and_in_a_term_one_of_a_higher_version() -> None:
    assert membership(term=1).newer(membership(version=5)).term == 1
    assert membership(version=5).newer(membership(term=1)).term == 1
    assert membership(version=5, roster=(0, 1)).newer(membership(version=4)).roster == {0, 1}


def test_the_newer_of_two_keeps_the_higher_cycle_of_both() -> None:
    assert membership(term=1, cycle=1).newer(membership(cycle=2)).cycle == 2


def test_while_a_new_roster_is_not_known_to_be_in_force_the_one_before_counts_too() -> None:
    assert membership().rosters == (frozenset({0, 1, 2}),)
    changing = Membership(0, 0, 0, 1, frozenset({0, 1}), before=frozenset({0, 1, 2}))
    assert changing.rosters == (frozenset({0, 1}), frozenset({0, 1, 2}))


def test_a_member_waits_for_the_lease_and_the_kill_though_its_clock_is_fast_and_the_leader_s_is_slow() -> None:
    assert FENCE_S / 1.01 > (LEASE_S + LEASE_KILL_S) / 0.99


def test_the_fence_leaves_time_to_elect_a_leader_and_start_its_driver_within_two_seconds_of_the_lease() -> None:
    assert FENCE_S + ELECTION_POLL_S + CLAIM_POLL_S < LEASE_S + 2.0


def test_a_leader_that_hands_over_without_an_election_leaves_one_voter() -> None:
    last = first_membership(4).handed_to(2, frozenset({0, 3}))
    assert last == Membership(0, 0, 0, 1, frozenset({2}), frozenset({0, 3}))
