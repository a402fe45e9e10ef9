"""When a candidate has won, what it starts with, and when it retires. Each test is a rule of the module's table."""

from __future__ import annotations

import pytest

from muster.election.candidate import ELECTION_TIMEOUT_S, Candidacy, CandidacyState, Retire, Win
from muster.election.membership import VERSIONS_PER_TERM, Membership, first_membership
from muster.election.quorum_lease import QuorumLease

ROSTER = frozenset(range(5))
MEMBERSHIP = Membership(0, 0, 2, 7, ROSTER, frozenset({9}))
CLAIMED_AT = 100.0


def candidacy(term: int = 1, node_index: int = 1, membership: Membership = MEMBERSHIP) -> Candidacy:
    """Return a candidacy whose claim has succeeded."""
    made = Candidacy(term, node_index, membership, "n0 is gone")
    assert made.claimed(CLAIMED_AT) == []
    return made


def join(made: Candidacy, *node_indexes: int, known: Membership | None = MEMBERSHIP) -> Win | None:
    """Let these nodes join; return the win, if there is one."""
    effects = [effect for index in node_indexes for effect in made.joined(index, known, 0.0)]
    assert len(effects) <= 1 and (made.state is CandidacyState.WON) == bool(effects)
    win = effects[0] if effects else None
    assert win is None or isinstance(win, Win)
    return win


def test_the_next_leader_knows_which_nodes_took_part() -> None:
    changing = Membership(0, 0, 2, 7, frozenset({0, 1, 2}), before=frozenset({0, 1, 2, 4}))
    win = join(candidacy(membership=changing), 1, 2, 4, known=changing)
    assert win is not None and win.term_start.roster == frozenset({0, 1, 2, 4})


def test_after_a_handover_the_next_leader_waits_for_all_nodes() -> None:
    last = MEMBERSHIP.handed_to(1, frozenset({0}))
    win = join(candidacy(membership=last), 1, known=last)
    assert win is not None and win.term_start.roster is None


# -- winning ------------------------------------------------------------------------------------------------------


def test_a_candidate_wins_with_more_than_half_of_the_roster_itself_among_them() -> None:
    made = candidacy()
    assert not join(made, 1, 2)
    assert join(made, 3)


def test_a_candidate_wins_only_once() -> None:
    made = candidacy()
    assert join(made, 1, 2, 3)
    assert made.joined(4, MEMBERSHIP, 0.0) == []


def test_a_candidate_does_not_win_without_having_joined_itself() -> None:
    assert not join(candidacy(), 2, 3, 4)


def test_joiners_outside_the_roster_and_repeated_joins_make_no_majority() -> None:
    assert not join(candidacy(), 1, 2, 2, 7, 8)


def test_a_joiner_that_is_gone_again_does_not_count() -> None:
    made = candidacy()
    join(made, 1, 2)
    made.lost(2)
    assert not join(made, 3)
    assert join(made, 4)


def test_a_majority_of_an_outdated_roster_does_not_win() -> None:
    newer = Membership(0, 0, 2, 8, frozenset(range(9)))
    made = candidacy()
    join(made, 1, 2)
    assert not join(made, 3, known=newer)
    assert join(made, 7, 8, known=newer)


def test_while_a_roster_may_not_be_in_force_a_majority_of_the_one_before_is_needed_too() -> None:
    changing = Membership(0, 0, 2, 8, frozenset({0, 1, 2}), before=ROSTER)
    made = candidacy(membership=changing)
    assert not join(made, 1, 2)
    assert join(made, 4)


def test_a_candidate_that_the_newest_membership_does_not_list_cannot_win() -> None:
    without = Membership(0, 0, 2, 8, frozenset({0, 2, 3}), frozenset({1}))
    assert not join(candidacy(), 1, 2, 3, known=without)


def test_a_member_that_knows_no_membership_counts_with_the_candidate_s_own() -> None:
    assert join(candidacy(), 1, 2, 3, known=None)


def test_members_that_join_before_the_claim_is_known_to_have_succeeded_win_with_it() -> None:
    made = Candidacy(1, 1, MEMBERSHIP, "n0 is gone")
    assert not join(made, 1, 2, 3)
    (win,) = made.claimed(CLAIMED_AT)
    assert isinstance(win, Win)


# -- what it starts with --------------------------------------------------------------------------------------------


def test_the_claim_to_the_first_term_wins_at_once_with_the_first_membership() -> None:
    membership = first_membership(3, 2)
    (win,) = Candidacy(0, 2, membership, "").claimed(CLAIMED_AT)
    assert isinstance(win, Win) and win.membership == membership
    assert (win.term_start.term, win.term_start.leader, win.term_start.cycle) == (0, 2, 0)


def test_the_new_leader_continues_with_the_next_cycle_without_the_lost_one() -> None:
    win = join(candidacy(term=3), 1, 2, 3)
    assert win is not None
    start = win.term_start
    assert (start.term, start.leader, start.cycle, start.lost) == (3, 1, 3, 0)
    assert start.excluded == {0, 9} and start.reason == "n0 is gone"
    assert win.membership.excluded == {0, 9} and win.membership.cycle == 3


def test_a_new_leader_that_led_before_does_not_exclude_itself() -> None:
    made = candidacy(node_index=0)
    win = join(made, 0, 2, 3)
    assert win is not None and win.term_start.excluded == {9}


def test_the_first_membership_of_a_term_is_newer_than_any_of_the_terms_before() -> None:
    win = join(candidacy(term=3), 1, 2, 3)
    assert win is not None
    membership = win.membership
    assert membership.version == 3 * VERSIONS_PER_TERM and membership.roster == ROSTER
    assert membership.newer(Membership(2, 4, 9, 3 * VERSIONS_PER_TERM - 1, ROSTER)).term == 3


def test_a_pending_change_of_the_roster_stays_pending_under_the_new_leader() -> None:
    changing = Membership(0, 0, 2, 8, frozenset({0, 1, 2, 3}), before=ROSTER)
    win = join(candidacy(membership=changing), 1, 2, 3, known=changing)
    assert win is not None and win.membership.rosters == changing.rosters


def test_the_time_of_the_last_answered_message_is_kept_for_joined_members_only() -> None:
    made = candidacy()
    made.joined(2, MEMBERSHIP, 5.0)
    made.answered(2, None)
    assert made.sent == {2: 5.0}
    made.answered(2, 7.5)
    made.answered(3, 7.5)
    assert made.sent == {2: 7.5}
    made.lost(2)
    assert made.sent == {}


# -- retiring -------------------------------------------------------------------------------------------------------


def test_a_candidate_without_a_majority_in_time_retires_once_and_never_wins() -> None:
    made = candidacy()
    join(made, 1, 2)
    assert made.tick(CLAIMED_AT + ELECTION_TIMEOUT_S - 0.01) == []
    assert made.tick(CLAIMED_AT + ELECTION_TIMEOUT_S) == [Retire()]
    assert made.tick(CLAIMED_AT + ELECTION_TIMEOUT_S + 1) == []
    assert made.joined(3, MEMBERSHIP, 0.0) == []


def test_neither_an_unclaimed_nor_a_won_term_is_given_up() -> None:
    unclaimed, won = Candidacy(1, 1, MEMBERSHIP, ""), candidacy()
    join(won, 1, 2, 3)
    assert unclaimed.tick(1e6) == [] and won.tick(1e6) == []


# -- majorities and leases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", range(3, 9))
def test_a_quorum_of_a_lease_and_a_majority_of_an_election_have_a_member_in_common(nodes: int) -> None:
    membership = first_membership(nodes)
    for keep in range(1, nodes):
        quorum = QuorumLease(membership)
        for node_index in range(1, keep + 1):
            quorum.answered(node_index, 0.0, 0)
        if quorum.expires_at() > 0.0:
            others = range(keep + 1, nodes)
            assert not any(join(candidacy(1, index, membership), *others, known=membership) for index in others)


def test_of_two_members_the_other_may_lead_when_the_leader_steps_down() -> None:
    pair = Membership(0, 0, 0, 3, frozenset({0, 1}))
    assert not join(candidacy(membership=pair), 1, known=pair)
    after = pair.without_leader()
    assert join(candidacy(membership=pair), 1, known=after)
    assert after.newer(pair) == after and after.excluded == {0}


@pytest.mark.parametrize("nodes", range(2, 9))
def test_two_majorities_after_a_leader_stepped_down_have_a_member_in_common(nodes: int) -> None:
    """One majority knows of it; the other consists of members that did not get its last message."""
    membership = first_membership(nodes)
    after = membership.without_leader()
    for first in range(1, nodes):
        know, others = range(1, first + 1), range(first + 1, nodes)
        without_it = [join(candidacy(1, index, membership), *others, known=membership) for index in others]
        assert not (join(candidacy(1, 1, after), *know, known=after) and any(without_it))


# -- handover -----------------------------------------------------------------------------------------------------


def candidacy_after(in_use: frozenset[int] | None) -> Candidacy:
    """Return a candidacy that knows which nodes may run processes."""
    made = Candidacy(1, 1, MEMBERSHIP, "n0 is gone", in_use)
    made.claimed(CLAIMED_AT)
    return made


def test_a_win_names_the_nodes_in_use_that_have_not_joined() -> None:
    win = join(candidacy_after(frozenset(range(7))), 1, 2, 3)
    assert win is not None and win.in_use == {0, 4, 5, 6}


def test_a_win_leaves_it_to_the_membership_if_the_nodes_in_use_are_not_given() -> None:
    win = join(candidacy_after(None), 1, 2, 3)
    assert win is not None and win.in_use is None


def test_a_node_that_has_joined_and_was_lost_again_is_clean() -> None:
    made = candidacy_after(frozenset(range(7)))
    made.joined(4, MEMBERSHIP, 0.0)
    made.lost(4)
    win = join(made, 1, 2, 3)
    assert win is not None and win.in_use == {0, 5, 6}


def test_nobody_is_ruled_out_if_a_member_knows_a_newer_membership_than_the_candidate() -> None:
    newer = Membership(0, 0, 2, 8, ROSTER, frozenset({9}))
    win = join(candidacy_after(frozenset({1, 2, 4})), 1, 2, 3, known=newer)
    assert win is not None and win.in_use == (ROSTER | {9}) - {1, 2, 3}


def test_the_cycle_of_a_leader_that_stepped_down_before_its_driver_ran_counts_as_no_restart() -> None:
    after = MEMBERSHIP.without_leader()
    win = join(candidacy(membership=MEMBERSHIP), 1, 2, 3, known=after)
    assert win is not None and win.term_start.handed_over
    assert (win.term_start.cycle, win.term_start.handovers, win.membership.handovers) == (after.cycle + 1, 1, 1)
    lost = join(candidacy(membership=MEMBERSHIP), 1, 2, 3)
    assert lost is not None and (lost.term_start.handed_over, lost.term_start.handovers) == (False, 0)


def test_a_node_that_a_leader_has_handed_over_to_wins_without_others_and_no_other_node_can() -> None:
    last = first_membership(5).handed_to(2, frozenset({0}))
    assert join(candidacy(1, 2, last), 2, known=last)
    assert not join(candidacy(1, 1, last), 1, 2, 3, 4, known=last)
