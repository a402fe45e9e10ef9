"""A member without a leader: when it waits, joins or claims; and when a candidate has won."""

from __future__ import annotations

import pytest

from muster.election.campaign import (
    CLAIM_STAGGER_S,
    ELECTION_TIMEOUT_S,
    LEADER_SEARCH_TIMEOUT_S,
    Campaign,
    Claim,
    Election,
    Join,
    Leave,
    Wait,
)
from muster.election.membership import VERSIONS_PER_TERM, Membership
from muster.election.quorum_lease import QuorumLease
from muster.election.timing import FENCE_S

ROSTER = frozenset(range(5))
MEMBERSHIP = Membership(0, 0, 2, 7, ROSTER, frozenset({9}))


def leaderless(rank: int, last_answer: float | None = None, membership: Membership = MEMBERSHIP) -> Election:
    """Return the election of a member that lost its leader at 100."""
    return Election(rank, membership, 100.0, last_answer)


# -- a member ---------------------------------------------------------------------------------------------------


def test_a_member_waits_until_its_leader_is_fenced_whatever_is_claimed() -> None:
    member = leaderless(1, last_answer=99.0)
    assert member.decide(99.0 + FENCE_S - 0.01, True, {1: 2}) == Wait()
    assert member.decide(99.0 + FENCE_S, True, {1: 2}) == Join(1)


def test_a_member_that_was_released_by_its_leader_need_not_wait() -> None:
    assert leaderless(1).decide(100.0, True, {1: 2}) == Join(1)


def test_a_member_joins_no_candidate_before_its_node_is_clean() -> None:
    assert leaderless(1).decide(100.0, False, {1: 2}) == Wait()


def test_members_claim_in_the_order_of_their_numbers_the_lost_leader_last() -> None:
    assert leaderless(1).decide(100.0, True, {}) == Claim(1)
    assert leaderless(3).decide(100.0 + 2 * CLAIM_STAGGER_S - 0.01, True, {}) == Wait()
    assert leaderless(3).decide(100.0 + 2 * CLAIM_STAGGER_S, True, {}) == Claim(1)
    assert leaderless(0).decide(100.0 + 4 * CLAIM_STAGGER_S - 0.01, True, {}) == Wait()


def test_a_member_that_is_not_on_the_roster_does_not_claim() -> None:
    assert leaderless(7).decide(100.0 + LEADER_SEARCH_TIMEOUT_S - 1, True, {}) == Wait()


def test_a_failed_candidate_is_not_joined_again_and_comes_last() -> None:
    member = leaderless(2)
    member.candidate_failed(1, 1, 110.0, None)
    assert member.decide(110.0, True, {1: 1}) == Claim(2)


def test_a_candidate_that_may_have_won_is_fenced_as_a_leader_is() -> None:
    member = leaderless(2)
    member.candidate_failed(1, 1, 110.0, 109.0)
    assert member.decide(109.0 + FENCE_S - 0.01, True, {2: 3}) == Wait()
    assert member.decide(109.0 + FENCE_S, True, {2: 3}) == Join(2)


def test_of_several_claims_the_newest_is_joined() -> None:
    assert leaderless(1).decide(100.0, True, {1: 2, 3: 4, 2: 3}) == Join(3)


def test_the_claim_of_an_excluded_node_is_passed_over_and_its_term_is_not_taken_again() -> None:
    assert leaderless(1).decide(100.0, True, {4: 9}) == Claim(5)
    assert leaderless(1).decide(100.0, True, {4: 9, 3: 2}) == Join(3)


def test_a_member_leaves_when_no_candidate_got_a_majority_for_long() -> None:
    member = leaderless(1)
    assert member.decide(100.0 + LEADER_SEARCH_TIMEOUT_S, True, {1: 3}) == Join(1)
    assert member.decide(100.0 + LEADER_SEARCH_TIMEOUT_S, True, {}) == Leave()


def test_there_is_time_for_several_candidates_before_members_leave() -> None:
    assert LEADER_SEARCH_TIMEOUT_S >= 3 * ELECTION_TIMEOUT_S


# -- a candidate ------------------------------------------------------------------------------------------------


def joined(candidacy: Campaign, *ranks: int, membership: Membership = MEMBERSHIP) -> Campaign:
    for rank in ranks:
        candidacy.add(rank, membership, 0.0)
    return candidacy


def test_a_candidate_wins_with_more_than_half_of_the_roster_itself_among_them() -> None:
    candidacy = joined(Campaign(1, 1, MEMBERSHIP), 1, 2)
    assert not candidacy.won
    assert joined(candidacy, 3).won


def test_a_candidate_does_not_win_without_having_joined_itself() -> None:
    assert not joined(Campaign(1, 1, MEMBERSHIP), 2, 3, 4).won


def test_joiners_outside_the_roster_and_repeated_joins_make_no_majority() -> None:
    assert not joined(Campaign(1, 1, MEMBERSHIP), 1, 2, 2, 7, 8).won


def test_a_joiner_that_is_gone_again_does_not_count() -> None:
    candidacy = joined(Campaign(1, 1, MEMBERSHIP), 1, 2, 3)
    candidacy.remove(3)
    assert not candidacy.won


def test_a_majority_of_an_outdated_roster_does_not_win() -> None:
    newer = Membership(0, 0, 2, 8, frozenset(range(9)))
    candidacy = joined(Campaign(1, 1, MEMBERSHIP), 1, 2)
    assert not joined(candidacy, 3, membership=newer).won
    assert joined(candidacy, 7, 8, membership=newer).won


def test_while_a_roster_may_not_be_in_force_a_majority_of_the_one_before_is_needed_too() -> None:
    changing = Membership(0, 0, 2, 8, frozenset({0, 1, 2}), before=ROSTER)
    candidacy = joined(Campaign(1, 1, changing), 1, 2)
    assert not candidacy.won
    assert joined(candidacy, 4).won


def test_a_candidate_that_the_newest_membership_does_not_list_cannot_win() -> None:
    without = Membership(0, 0, 2, 8, frozenset({0, 2, 3}), frozenset({1}))
    assert not joined(Campaign(1, 1, MEMBERSHIP), 1, 2, 3, membership=without).won


def test_the_new_leader_continues_with_the_next_cycle_without_the_lost_one() -> None:
    term_start = joined(Campaign(3, 1, MEMBERSHIP), 1, 2, 3).term_start("n0 is gone")
    assert (term_start.term, term_start.leader, term_start.cycle, term_start.lost) == (3, 1, 3, 0)
    assert term_start.excluded == {0, 9} and term_start.reason == "n0 is gone"


def test_the_first_membership_of_a_term_is_newer_than_any_of_the_terms_before() -> None:
    membership = joined(Campaign(3, 1, MEMBERSHIP), 1, 2, 3).new_membership()
    assert membership.version == 3 * VERSIONS_PER_TERM and membership.roster == ROSTER
    assert membership.newer(Membership(2, 4, 9, 3 * VERSIONS_PER_TERM - 1, ROSTER)).term == 3


def test_a_pending_change_of_the_roster_stays_pending_under_the_new_leader() -> None:
    changing = Membership(0, 0, 2, 8, frozenset({0, 1, 2, 3}), before=ROSTER)
    membership = joined(Campaign(1, 1, changing), 1, 2, 3).new_membership()
    assert membership.rosters == changing.rosters


@pytest.mark.parametrize("nodes", range(3, 9))
def test_a_quorum_of_a_lease_and_a_majority_of_an_election_have_a_member_in_common(nodes: int) -> None:
    membership = Membership(0, 0, 0, 0, frozenset(range(nodes)))
    for keep in range(1, nodes):
        quorum = QuorumLease(membership)
        for rank in range(1, keep + 1):
            quorum.answered(rank, 0.0, 0)
        if quorum.expires_at() > 0.0:
            others = range(keep + 1, nodes)
            assert not any(joined(Campaign(1, rank, membership), *others, membership=membership).won for rank in others)


def test_of_two_members_the_other_may_lead_when_the_leader_steps_down() -> None:
    pair = Membership(0, 0, 0, 3, frozenset({0, 1}))
    assert not joined(Campaign(1, 1, pair), 1, membership=pair).won
    after = pair.without_leader()
    assert joined(Campaign(1, 1, pair), 1, membership=after).won
    assert after.newer(pair) == after and after.excluded == {0}


@pytest.mark.parametrize("nodes", range(2, 9))
def test_two_majorities_after_a_leader_stepped_down_have_a_member_in_common(nodes: int) -> None:
    """One majority knows of it; the other consists of members that did not get its last message."""
    membership = Membership(0, 0, 0, 0, frozenset(range(nodes)))
    after = membership.without_leader()
    for first in range(1, nodes):
        know, others = range(1, first + 1), range(first + 1, nodes)
        without_it = [joined(Campaign(1, rank, membership), *others, membership=membership).won for rank in others]
        assert not (joined(Campaign(1, 1, after), *know, membership=after).won and any(without_it))
