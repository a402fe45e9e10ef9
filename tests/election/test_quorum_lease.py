"""The time until which a leader may act, and the members that count for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from muster.election import quorum_lease
from muster.election.membership import Membership, first_membership
from muster.election.quorum_lease import NEVER, QuorumLease, majority
from muster.election.timing import LEASE_S


def answer(quorum: QuorumLease, at: float, *node_indexes: int, version: int = -1) -> bool:
    return True in [quorum.answered(node_index, at, version) for node_index in node_indexes]


def know(quorum: QuorumLease, *node_indexes: int) -> bool:
    return True in [quorum.answered(node_index, None, quorum.membership.version) for node_index in node_indexes]


def quorum_of(nodes: int) -> QuorumLease:
    """Return the lease of a leader (node 0) that every node has joined and that holds its lease."""
    quorum = QuorumLease(first_membership(nodes))
    answer(quorum, 0.0, *range(1, nodes), version=0)
    assert quorum.acquire(1.0)
    return quorum


def change(quorum: QuorumLease, *roster: int, excluded: Iterable[int] = (), cycle: int = 0) -> bool:
    return quorum.propose(roster, excluded, cycle)


# -- the lease --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "others"), [(3, 1), (4, 1), (5, 2), (6, 2), (7, 3)])
def test_the_lease_runs_from_the_latest_beat_that_half_with_the_leader_have_answered(nodes: int, others: int) -> None:
    quorum = quorum_of(nodes)
    answer(quorum, 7.0, *range(1, others))
    assert quorum.expires_at() == LEASE_S
    answer(quorum, 7.0, others)
    assert quorum.expires_at() == 7.0 + LEASE_S


def test_each_member_counts_with_its_own_latest_answer() -> None:
    quorum = quorum_of(5)
    answer(quorum, 3.0, 1)
    answer(quorum, 6.0, 2)
    answer(quorum, 9.0, 3)
    assert quorum.expires_at() == 6.0 + LEASE_S


def test_an_answer_to_an_older_beat_takes_nothing_back() -> None:
    quorum = quorum_of(3)
    answer(quorum, 5.0, 1)
    answer(quorum, 2.5, 1)
    assert quorum.expires_at() == 5.0 + LEASE_S


def test_a_report_of_a_known_version_does_not_renew_the_lease() -> None:
    quorum = quorum_of(3)
    know(quorum, 1, 2)
    assert quorum.expires_at() == LEASE_S


def test_a_leader_of_two_nodes_is_half_and_its_lease_never_expires() -> None:
    assert QuorumLease(first_membership(2)).expires_at() == NEVER


def test_nodes_that_are_not_on_the_list_do_not_count() -> None:
    quorum = QuorumLease(Membership(0, 0, 0, 0, frozenset({0, 1, 2})))
    answer(quorum, 5.0, 7, 8)
    assert quorum.expires_at() < 0


# -- the first lease --------------------------------------------------------------------------------------------


def test_a_leader_may_not_act_before_half_of_all_nodes_have_answered_and_know() -> None:
    quorum = QuorumLease(first_membership(4))
    assert not quorum.acquire(1.0)
    answer(quorum, 0.5, 1)
    assert not quorum.acquire(1.0)
    know(quorum, 1)
    assert quorum.acquire(1.0)


def test_a_leader_may_not_begin_to_act_with_answers_that_are_too_old() -> None:
    quorum = QuorumLease(first_membership(3))
    answer(quorum, 0.0, 1, version=0)
    assert not quorum.acquire(LEASE_S)


def test_the_dead_count_for_the_first_lease_since_they_may_have_followed_another_leader_before() -> None:
    quorum = QuorumLease(first_membership(5))
    for node_index in (1, 2, 3):
        quorum.died(node_index)
    answer(quorum, 0.0, 4, version=0)
    assert not quorum.acquire(1.0)


def test_under_a_held_lease_the_dead_stop_counting_at_once() -> None:
    quorum = quorum_of(5)
    for node_index in (1, 2, 3):
        quorum.died(node_index)
    assert quorum.expires_at() == NEVER
    assert change(quorum, 0, 4) and quorum.settled


def test_members_that_died_before_the_first_lease_stop_counting_once_it_is_held() -> None:
    quorum = QuorumLease(first_membership(5))
    quorum.died(1)
    answer(quorum, 0.0, 2, 3, 4, version=0)
    assert quorum.acquire(1.0)
    answer(quorum, 8.0, 2)
    assert quorum.expires_at() == 8.0 + LEASE_S


# -- another roster ---------------------------------------------------------------------------------------------


def test_a_new_roster_is_in_force_once_half_of_the_old_one_and_of_the_new_one_know_it() -> None:
    quorum = quorum_of(7)
    assert change(quorum, 0, 4, 5)
    assert quorum.membership.before == frozenset(range(7)) and not quorum.settled
    assert not know(quorum, 1, 2, 3)  # half of the old roster, with the leader; of the new one only the leader
    assert know(quorum, 4)
    assert quorum.settled and quorum.membership.before == frozenset()


def test_a_new_roster_is_sent_when_proposed_and_when_in_force() -> None:
    quorum = quorum_of(3)
    assert change(quorum, 0, 1)
    versions = [quorum.membership.version]
    assert know(quorum, 1)
    versions.append(quorum.membership.version)
    assert versions == [1, 2]


def test_while_a_roster_changes_the_leader_needs_half_of_both() -> None:
    quorum = quorum_of(5)
    change(quorum, 0, 1, 2)  # nodes 3 and 4 have failed, but answer
    answer(quorum, 6.0, 3, 4)
    assert quorum.expires_at() == LEASE_S
    answer(quorum, 6.0, 1)
    assert quorum.expires_at() == 6.0 + LEASE_S


def test_one_change_is_made_at_a_time() -> None:
    quorum = quorum_of(5)
    assert change(quorum, 0, 1, 2, 3)
    assert not change(quorum, 0, 1, 2)
    know(quorum, 1, 2)
    assert change(quorum, 0, 1, 2)


def test_an_unchanged_roster_is_not_proposed() -> None:
    quorum = quorum_of(3)
    assert not change(quorum, 0, 1, 2)
    assert quorum.membership.version == 0


def test_a_new_cycle_is_settled_once_half_know_of_it_though_the_roster_is_the_same() -> None:
    quorum = quorum_of(3)
    assert change(quorum, 0, 1, 2, cycle=1)
    assert not quorum.settled and quorum.membership.before == frozenset()
    know(quorum, 2)
    assert quorum.settled


def test_a_roster_may_grow() -> None:
    quorum = QuorumLease(Membership(0, 0, 0, 0, frozenset({0, 1, 2})))
    answer(quorum, 0.0, 1, 2, version=0)
    assert change(quorum, 0, 1, 2, 3, 4) and know(quorum, 1, 3)
    assert quorum.membership.roster == {0, 1, 2, 3, 4} and quorum.settled


def test_knowing_a_version_of_an_earlier_term_is_not_knowing_this_one() -> None:
    quorum = QuorumLease(Membership(1, 0, 1, 1_000_000, frozenset({0, 1, 2})))
    quorum.answered(1, 0.0, 999)
    assert not quorum.settled


@pytest.mark.parametrize(("share", "enough"), [(1, False), (2, False), (3, True)])
def test_a_new_leader_needs_more_than_half(share: int, enough: bool) -> None:
    assert majority(share, frozenset(range(4))) is enough


# -- many members -----------------------------------------------------------------------------------------------


def test_a_loss_does_not_cost_a_sort_of_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    quorum, sorted_values = quorum_of(1000), 0

    def counted(values: Iterable[Any]) -> list[Any]:
        nonlocal sorted_values
        found = sorted(values)
        sorted_values += len(found)
        return found

    monkeypatch.setattr(quorum_lease, "sorted", counted, raising=False)
    roster = list(range(1000))
    for lost in range(100):
        roster.pop()
        assert change(quorum, *roster)
        assert know(quorum, *roster[1:]) and know(quorum, *roster[1:]) is False
        quorum.died(roster[-1])
        answer(quorum, float(lost), *roster[1:])
    assert sorted_values == 0
    assert quorum.expires_at() == 99.0 + LEASE_S


def test_a_lease_after_many_changes_is_that_of_a_new_count() -> None:
    """The incremental count must agree with one from the beginning."""
    quorum = quorum_of(40)
    for number in range(1, 40):
        answer(quorum, number / 10, number)
    for lost in (5, 17, 30, 31, 32):
        roster = quorum.membership.roster - {lost}
        change(quorum, *roster)
        know(quorum, *roster)
        quorum.died(lost + 1)
        answer(quorum, 5.0 + lost / 10, lost + 2)
    counted = sorted(
        quorum._answered[node] for node in quorum.membership.roster - {0} - {6, 18, 31, 32, 33} if node != 0
    )
    assert quorum.expires_at() == counted[-(len(counted) // 2)] + LEASE_S


# -- after a stop of the leader --------------------------------------------------------------------------------------


def stopped_quorum(nodes: int) -> QuorumLease:
    """Return the lease of a leader that was stopped from 1 to 61."""
    quorum = quorum_of(nodes)
    know(quorum, *range(1, nodes))
    answer(quorum, 1.0, *range(nodes))
    assert quorum.acquire(1.0)
    quorum.lapse(61.0)
    return quorum


def test_after_a_stop_the_lease_needs_half_of_the_members_and_the_leader_s_own_node() -> None:
    quorum = stopped_quorum(5)
    answer(quorum, 61.0, 1, 2)
    assert not quorum.acquire(61.5)
    answer(quorum, 61.0, 0)
    assert quorum.acquire(61.5)
    assert quorum.expires_at() == 61.0 + LEASE_S


def test_after_a_stop_one_answer_less_than_half_is_not_enough() -> None:
    quorum = stopped_quorum(5)
    answer(quorum, 61.0, 0, 1)
    assert not quorum.acquire(61.5)


def test_answers_to_heartbeats_from_before_a_stop_do_not_count() -> None:
    quorum = stopped_quorum(5)
    answer(quorum, 60.9, *range(5))
    assert not quorum.acquire(61.5)


def test_after_a_stop_the_dead_count_since_they_may_have_followed_another_leader_before() -> None:
    quorum = quorum_of(5)
    know(quorum, 1, 2, 3, 4)
    answer(quorum, 1.0, 0, 1, 2, 3, 4)
    assert quorum.acquire(1.0)
    quorum.died(3)
    quorum.died(4)
    quorum.lapse(61.0)
    answer(quorum, 61.0, 0, 1)
    assert not quorum.acquire(61.5)  # it is half of the living only
    answer(quorum, 61.0, 2)
    assert quorum.acquire(61.5)


def test_after_a_stop_both_rosters_of_a_pending_change_count() -> None:
    quorum = quorum_of(5)
    know(quorum, 1, 2, 3, 4)
    answer(quorum, 1.0, 0, 1, 2, 3, 4)
    assert quorum.acquire(1.0) and change(quorum, 0, 1, 2)
    quorum.lapse(61.0)
    answer(quorum, 61.0, 0, 1)
    assert not quorum.acquire(61.5)  # half of the new roster, not of the old one
    answer(quorum, 61.0, 2)
    assert quorum.acquire(61.5)
