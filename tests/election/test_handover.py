"""Which nodes may run processes of earlier cycles, by the memberships that one node has received."""

from __future__ import annotations

from muster.election.handover import RosterHistory
from muster.election.membership import Membership
from muster.election.timing import FENCE_S

NODES = 4
ALL = frozenset(range(NODES))


def membership(*excluded: int, term: int = 0, cycle: int = 0) -> Membership:
    return Membership(term, 0, cycle, 0, ALL - set(excluded), frozenset(excluded))


def history(*received: tuple[Membership, float]) -> RosterHistory:
    made = RosterHistory()
    for one, now in received:
        made.received(one, now)
    return made


def test_every_node_may_be_in_use_before_a_membership_is_known() -> None:
    assert RosterHistory().in_use(NODES, 1000.0) == ALL


def test_a_node_excluded_in_this_cycle_may_still_be_ending_its_processes() -> None:
    assert history((membership(), 0.0), (membership(3), 1.0)).in_use(NODES, 1000.0) == ALL


def test_a_node_excluded_before_this_cycle_is_out_of_use_once_it_is_fenced() -> None:
    made = history((membership(), 0.0), (membership(3), 1.0), (membership(3, cycle=1), 2.0))
    assert made.in_use(NODES, 1.0 + FENCE_S - 0.01) == ALL
    assert made.in_use(NODES, 1.0 + FENCE_S) == {0, 1, 2}


def test_a_node_that_is_excluded_as_the_cycle_begins_may_be_in_use() -> None:
    assert history((membership(), 0.0), (membership(3, cycle=1), 1.0)).in_use(NODES, 1000.0) == ALL


def test_nobody_is_ruled_out_by_a_leader_that_this_node_has_just_joined() -> None:
    assert history((membership(3, cycle=5), 0.0)).in_use(NODES, 1000.0) == ALL


def test_the_knowledge_of_an_earlier_term_does_not_count() -> None:
    made = history((membership(3), 0.0), (membership(3, cycle=1), 1.0), (membership(3, term=1, cycle=2), 2.0))
    assert made.in_use(NODES, 1000.0) == ALL
