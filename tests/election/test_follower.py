"""What a node does next, from its start to its exit. Each test is a row of the module's table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.election.candidate import ELECTION_TIMEOUT_S
from muster.election.follower import (
    CLAIM_POLL_S,
    CLAIM_STAGGER_S,
    CONNECT_TRIES,
    ELECTION_POLL_S,
    FIRST_LEADER_TIMEOUT_S,
    LEADER_SEARCH_TIMEOUT_S,
    SEARCH_MAX_POLL_S,
    SEARCH_MIN_POLL_S,
    Campaign,
    CleanUp,
    Connect,
    EndLeaderless,
    ExitAgent,
    Follow,
    FollowerEffect,
    FollowerElection,
    FollowerState,
    Lead,
    LostLeader,
    Poll,
    PollResult,
    StartupView,
)
from muster.election.handover import RosterHistory
from muster.election.leader_silence import FIRST_LEADER_CANDIDATES, SLOW_POLL_S, STARTUP_SILENCE_S
from muster.election.membership import Membership, first_membership
from muster.election.timing import FENCE_S
from muster.exit_codes import INFRASTRUCTURE_FAILED

NODES, GATHER_S = 20, 60.0
ROSTER = frozenset(range(5))
MEMBERSHIP = Membership(0, 0, 2, 7, ROSTER, frozenset({9}))
NOTHING = PollResult({}, None)
WAIT = Poll(ELECTION_POLL_S)
CLAIM_DUE = Poll(CLAIM_POLL_S)


def claims(**by_term: int) -> PollResult:
    """Return a poll that shows claims: claims(t1=4) means that node 4 has claimed term 1."""
    return PollResult({int(term[1:]): node_index for term, node_index in by_term.items()}, None)


def certified(poll: PollResult, *terms: int) -> PollResult:
    """Return the poll with certificates that the agents that claimed these terms are gone."""
    return replace(poll, gone=frozenset(terms))


def agent(node_index: int = 1, history: RosterHistory | None = None) -> FollowerElection:
    return FollowerElection(node_index, NODES, f"n{node_index}", GATHER_S, history)


def searching(node_index: int = 1) -> FollowerElection:
    """Return an agent that has started at 0 and looks for the first leader."""
    made = agent(node_index)
    assert made.started(0.0) == Poll(0.0)
    return made


def following(node_index: int = 1, history: RosterHistory | None = None) -> FollowerElection:
    """Return an agent that follows node 0 in term 0."""
    made = agent(node_index, history)
    made.started(0.0)
    assert made.polled(claims(t0=0), 0.0) == Connect(0, 0)
    assert made.connected() == Follow()
    return made


def leaderless(
    node_index: int,
    last_answer: float | None = None,
    membership: Membership = MEMBERSHIP,
    history: RosterHistory | None = None,
) -> FollowerElection:
    """Return a member whose leader was lost at 100 (or has released it then), and whose node is clean."""
    made = following(node_index, history)
    assert made.lost(LostLeader(membership, last_answer, "the leader n0 fell silent"), False, 100.0) == CleanUp()
    assert made.cleaned(100.0) == Poll(0.0) and made.state is FollowerState.ELECTING
    return made


def fail_to_connect(made: FollowerElection, now: float) -> FollowerEffect:
    """Let all tries to reach the candidate fail; return the last effect."""
    return [made.connect_failed(now) for _ in range(CONNECT_TRIES)][-1]


# -- searching --------------------------------------------------------------------------------------------------------


def test_the_first_node_claims_the_first_term_at_once_and_then_finds_its_own_claim() -> None:
    made = agent(0)
    assert made.started(0.0) == Campaign(0, first_membership(NODES, 0))
    assert made.claim_ended(0.0) == Poll(0.0)
    assert made.polled(claims(t0=0), 0.0) == Connect(0, 0)


def test_a_node_that_starts_after_the_end_exits_with_the_recorded_code() -> None:
    assert searching().polled(PollResult({0: 0}, 3), 0.0) == ExitAgent(3)


def test_a_late_node_tries_older_claims_since_the_newest_may_have_failed() -> None:
    made = searching()
    assert made.polled(claims(t0=0, t2=4, t1=3), 0.0) == Connect(2, 4)
    assert [made.connect_failed(0.0), made.connect_failed(0.0)] == [Connect(1, 3), Connect(0, 0)]
    assert isinstance(made.connect_failed(0.0), Poll)


def test_polls_for_the_first_leader_become_rarer_and_then_include_heartbeats() -> None:
    made, polls = searching(), []
    while not (polls and polls[-1].after == SEARCH_MAX_POLL_S):
        effect = made.polled(NOTHING, 0.0)
        assert isinstance(effect, Poll)
        polls.append(effect)
    assert polls[0] == Poll(SEARCH_MIN_POLL_S) and polls[1].after == 2 * SEARCH_MIN_POLL_S
    assert polls[-1] == Poll(SEARCH_MAX_POLL_S, startup=True)
    assert [poll.startup for poll in polls] == [False] * (len(polls) - 2) + [True] * 2


def test_a_high_node_index_reads_no_heartbeats_and_never_claims_the_first_term() -> None:
    made = searching(FIRST_LEADER_CANDIDATES + 1)
    for second in range(int(GATHER_S) * 2):
        assert made.polled(NOTHING, float(second)) in [Poll(SEARCH_MIN_POLL_S * 2**doubled) for doubled in range(5)] + [
            Poll(SEARCH_MAX_POLL_S)
        ]


def startup(seconds: float = 0.0, ended: frozenset[int] = frozenset(), **heartbeats: object) -> PollResult:
    """Return a poll of heartbeats: startup(n0="7")."""
    view = StartupView({int(name[1:]): beat for name, beat in heartbeats.items()}, ended)
    return PollResult({}, None, seconds, view)


POLLS = int(STARTUP_SILENCE_S / SEARCH_MAX_POLL_S)


def test_a_node_whose_heartbeat_has_stopped_is_passed_over() -> None:
    made = searching(1)
    effects = [made.polled(startup(n0="7"), float(second)) for second in range(POLLS + 1)]
    assert all(isinstance(effect, Poll) for effect in effects[:-1])
    assert effects[-1] == Campaign(0, first_membership(NODES, 1), frozenset({0}))


def test_a_node_that_lives_or_whose_state_is_unknown_is_awaited() -> None:
    slow, unknown, hanging = searching(1), searching(1), searching(1)
    for second in range(3 * POLLS):
        now = float(second)
        assert isinstance(slow.polled(startup(n0=second), now), Poll)
        assert isinstance(unknown.polled(startup(), now), Poll)
        assert isinstance(hanging.polled(startup(SLOW_POLL_S + 1, n0="7"), now), Poll)


def test_every_node_before_must_be_gone_by_its_heartbeat_or_by_its_task() -> None:
    made = searching(2)
    beats = [made.polled(startup(n0="7", n1=second), float(second)) for second in range(2 * POLLS)]
    assert all(isinstance(effect, Poll) for effect in beats)
    assert made.polled(startup(ended=frozenset({1}), n0="7"), 30.0) == Campaign(
        0, first_membership(NODES, 2), frozenset({0})
    )


def test_a_claim_keeps_a_node_from_claiming_the_first_term() -> None:
    made = searching(1)
    poll = PollResult({0: 0}, None, 0.0, StartupView({}, frozenset({0})))
    assert made.polled(poll, 0.0) == Connect(0, 0)
    assert isinstance(made.connect_failed(0.0), Poll)


def test_one_of_the_first_nodes_leads_if_no_leader_came_within_the_gather_timeout() -> None:
    made = searching(FIRST_LEADER_CANDIDATES)
    assert isinstance(made.polled(startup(), GATHER_S), Poll)
    assert made.polled(startup(), GATHER_S + 1) == Campaign(0, first_membership(NODES, FIRST_LEADER_CANDIDATES))


def test_a_node_that_finds_no_leader_for_long_ends_the_run_and_exits_with_a_failure() -> None:
    made, timeout = searching(), GATHER_S + FIRST_LEADER_TIMEOUT_S
    assert isinstance(made.polled(NOTHING, timeout), Poll)
    assert made.polled(NOTHING, timeout + 1) == EndLeaderless(f"n1 found no leader for {timeout:g} s")
    assert made.leaderless_ended() == Poll(0.0)
    assert made.polled(NOTHING, timeout + 30) == ExitAgent(INFRASTRUCTURE_FAILED)


# -- following --------------------------------------------------------------------------------------------------------


def test_a_dismissed_agent_exits_with_the_job_s_code_and_a_refused_one_with_a_failure() -> None:
    assert following().dismissed(0) == ExitAgent(0) and following().dismissed(7) == ExitAgent(7)
    assert following().refused() == ExitAgent(INFRASTRUCTURE_FAILED)


def test_an_agent_whose_own_leader_is_in_its_process_leaves_the_end_to_it() -> None:
    made = agent(0)
    made.started(0.0)
    made.claim_ended(0.0)
    made.polled(claims(t0=0), 0.0)
    made.connected()
    assert made.lost(LostLeader(MEMBERSHIP, 9.0, "is gone"), True, 10.0) == Lead()


def test_an_agent_that_led_an_earlier_term_cleans_up_when_it_loses_another_leader() -> None:
    assert following(1).lost(LostLeader(MEMBERSHIP, 9.0, "is gone"), True, 10.0) == CleanUp()


# -- without a membership -------------------------------------------------------------------------------------------


def test_a_connection_lost_before_the_first_message_never_leads_to_exit_code_0() -> None:
    made = following()
    made.lost(LostLeader(None, 99.0, "the leader n0 is gone: its connection ended"), False, 100.0)
    assert made.cleaned(100.0) == EndLeaderless("the leader n0 is gone: its connection ended")
    assert made.leaderless_ended() == Poll(0.0)
    assert made.polled(NOTHING, 130.0) == ExitAgent(INFRASTRUCTURE_FAILED)  # another node leads: nothing was recorded


def test_an_agent_that_gave_up_exits_with_the_recorded_code_if_there_is_one() -> None:
    made = following()
    made.lost(LostLeader(None, 99.0, "is gone"), False, 100.0)
    made.cleaned(100.0)
    made.leaderless_ended()
    assert made.polled(PollResult({}, 3), 130.0) == ExitAgent(3)


@pytest.mark.parametrize(("recorded", "code"), [(None, INFRASTRUCTURE_FAILED), (0, 0), (3, 3)])
def test_a_node_that_was_stopped_before_its_leader_was_lost_records_nothing(recorded: int | None, code: int) -> None:
    made = following()
    made.lost(LostLeader(None, 99.0, "is gone", stopped=True), False, 100.0)
    assert made.cleaned(100.0) == Poll(0.0)
    assert made.polled(PollResult({}, recorded), 100.0) == ExitAgent(code)


def test_a_late_node_released_by_a_failed_candidate_searches_again_from_the_beginning() -> None:
    made = searching()
    made.polled(claims(t0=0, t1=1), 0.0)
    made.connected()
    made.lost(LostLeader(None, None, "has stepped down"), False, 500.0)
    assert made.cleaned(500.0) == Poll(0.0) and made.state is FollowerState.SEARCHING
    assert made.polled(claims(t0=0, t1=1), 500.0) == Connect(1, 1)
    assert made.connect_failed(500.0) == Connect(0, 0)
    assert isinstance(made.connect_failed(500.0), Poll)  # the time of the search begins again


# -- electing ---------------------------------------------------------------------------------------------------------


def test_an_outcome_ends_an_election() -> None:
    assert leaderless(1).polled(PollResult({1: 2}, 5), 100.0) == ExitAgent(5)


def test_a_member_waits_until_its_leader_is_fenced_whatever_is_claimed() -> None:
    member = leaderless(1, last_answer=99.0)
    assert member.polled(claims(t1=2), 99.0 + FENCE_S - 1.0) == WAIT
    assert member.polled(claims(t1=2), 99.0 + FENCE_S - 0.01) == Poll(pytest.approx(0.01))
    assert member.polled(claims(t1=2), 99.0 + FENCE_S) == Connect(1, 2)


def test_a_member_whose_leader_is_certified_to_be_gone_need_not_wait() -> None:
    member = leaderless(1, last_answer=99.0)
    assert member.polled(claims(t0=0), 100.0) == WAIT
    assert member.polled(certified(claims(t0=0, t1=2), 0), 100.3) == Connect(1, 2)


def test_a_certificate_of_another_term_does_not_lift_the_fence() -> None:
    member = leaderless(1, last_answer=99.0, membership=replace(MEMBERSHIP, term=0))
    assert member.polled(certified(claims(t0=0, t1=2), 1), 100.0) == WAIT


def test_turns_begin_when_the_certificate_is_seen() -> None:
    member = leaderless(2, last_answer=99.0)
    assert member.polled(certified(claims(t0=0), 0), 101.0) == CLAIM_DUE
    assert member.polled(certified(claims(t0=0), 0), 101.0 + CLAIM_STAGGER_S - 0.01) == CLAIM_DUE
    assert isinstance(member.polled(certified(claims(t0=0), 0), 101.0 + CLAIM_STAGGER_S), Campaign)


def in_use(poll: PollResult, now: float, history: RosterHistory | None) -> frozenset[int] | None:
    """Return the nodes in use in the claim of node 1, which has lost its leader at 100."""
    effect = leaderless(1, last_answer=99.0, history=history).polled(poll, now)
    assert isinstance(effect, Campaign)
    return effect.in_use


def test_members_of_the_last_roster_are_in_use_if_the_leader_is_fenced() -> None:
    assert in_use(claims(t0=0), 99.0 + FENCE_S, RosterHistory()) == ROSTER - {0}


def test_every_node_may_be_in_use_if_the_leader_is_certified_to_be_gone_but_not_this_leader() -> None:
    assert in_use(certified(claims(t0=0), 0), 100.0, RosterHistory()) == frozenset(range(1, NODES))


def test_every_node_that_is_certified_to_be_gone_is_out_of_use() -> None:
    poll = certified(PollResult({0: 0, -1: 7}, None), 0, -1)
    assert in_use(poll, 100.0, RosterHistory()) == frozenset(range(1, NODES)) - {7}


def test_a_job_without_certificates_does_not_name_the_nodes_in_use() -> None:
    assert in_use(claims(t0=0), 99.0 + FENCE_S, None) is None


def test_a_fence_that_was_not_awaited_goes_on() -> None:
    member = leaderless(1, last_answer=99.0)
    assert member.polled(certified(claims(t0=0, t1=2), 0), 100.0) == Connect(1, 2)
    assert member.fence_left(100.0) == pytest.approx(FENCE_S - 1.0)
    assert member.fence_left(100.0, gone={0}) == 0.0
    assert member.fence_left(99.0 + FENCE_S + 1.0) == 0.0


def test_a_lost_candidate_is_fenced_although_the_leader_before_it_is_gone() -> None:
    member = leaderless(1, last_answer=99.0)
    member.polled(certified(claims(t0=0, t1=2), 0), 100.0)
    member.connected()
    member.lost(LostLeader(MEMBERSHIP, 105.0, "is gone"), False, 106.0)
    member.cleaned(106.0)
    both = claims(t0=0, t1=2, t2=3)
    assert member.polled(certified(both, 0), 105.0 + FENCE_S - 1.0) == WAIT
    assert member.polled(certified(both, 0, 1), 105.0 + FENCE_S - 1.0) == Connect(2, 3)


def test_a_member_that_was_released_by_its_leader_need_not_wait() -> None:
    assert leaderless(1).polled(claims(t1=2), 100.0) == Connect(1, 2)


def test_members_claim_in_the_order_of_their_numbers_the_lost_leader_last() -> None:
    assert leaderless(1).polled(NOTHING, 100.0) == Campaign(1, MEMBERSHIP)
    assert leaderless(3).polled(NOTHING, 100.0 + 2 * CLAIM_STAGGER_S - 0.01) == CLAIM_DUE
    assert leaderless(3).polled(NOTHING, 100.0 + 2 * CLAIM_STAGGER_S) == Campaign(1, MEMBERSHIP)
    assert leaderless(0).polled(NOTHING, 100.0 + 4 * CLAIM_STAGGER_S - 0.01) == CLAIM_DUE


def test_turns_begin_when_the_leader_is_fenced() -> None:
    member = leaderless(2, last_answer=99.0)
    assert member.polled(NOTHING, 99.0 + FENCE_S + CLAIM_STAGGER_S - 0.01) == CLAIM_DUE
    assert member.polled(NOTHING, 99.0 + FENCE_S + CLAIM_STAGGER_S) == Campaign(1, MEMBERSHIP)


@pytest.mark.parametrize(("members", "after"), [(5, CLAIM_POLL_S), (400, 0.2), (10_000, ELECTION_POLL_S)])
def test_members_poll_often_when_a_claim_is_due_but_not_all_of_a_large_roster(members: int, after: float) -> None:
    member = leaderless(3, membership=replace(MEMBERSHIP, roster=frozenset(range(members))))
    assert member.polled(NOTHING, 100.1) == Poll(after)


def test_after_its_claim_a_member_joins_its_own_candidate() -> None:
    member = leaderless(1)
    member.polled(NOTHING, 100.0)
    assert member.claim_ended(100.0) == Poll(CLAIM_POLL_S)
    assert member.polled(claims(t1=1), 100.3) == Connect(1, 1)


def test_a_member_that_is_not_on_the_roster_does_not_claim() -> None:
    assert leaderless(7).polled(NOTHING, 100.0 + LEADER_SEARCH_TIMEOUT_S - 1) == CLAIM_DUE


def test_a_candidate_is_tried_several_times_before_it_counts_as_failed() -> None:
    member = leaderless(2)
    member.polled(claims(t1=1), 110.0)
    tries = [member.connect_failed(110.0) for _ in range(CONNECT_TRIES)]
    assert tries == [Connect(1, 1, ELECTION_POLL_S)] * (CONNECT_TRIES - 1) + [WAIT]


def test_each_candidate_has_all_tries() -> None:
    member = leaderless(4)
    member.polled(claims(t1=1), 110.0)
    fail_to_connect(member, 110.0)
    member.polled(claims(t1=1, t2=2), 110.0)
    assert member.connect_failed(110.0) == Connect(2, 2, ELECTION_POLL_S)


def test_a_failed_candidate_is_not_joined_again_and_comes_last() -> None:
    member = leaderless(2)
    member.polled(claims(t1=1), 110.0)
    fail_to_connect(member, 110.0)
    assert member.polled(claims(t1=1), 110.0) == Campaign(2, MEMBERSHIP)


def test_a_candidate_that_retired_needs_no_fence() -> None:
    member = leaderless(2)
    member.polled(claims(t1=1), 110.0)
    member.connected()
    assert member.lost(LostLeader(MEMBERSHIP, None, "has stepped down"), False, 125.0) == CleanUp()
    member.cleaned(125.0)
    assert member.polled(claims(t1=1, t2=3), 125.0) == Connect(2, 3)


def test_a_candidate_that_retired_is_not_joined_again() -> None:
    member = leaderless(2)
    member.polled(claims(t1=1), 110.0)
    member.connected()
    member.lost(LostLeader(MEMBERSHIP, None, "has stepped down"), False, 125.0)
    member.cleaned(125.0)
    assert member.polled(claims(t1=1), 125.0) == Campaign(2, MEMBERSHIP)


def test_turns_begin_again_when_a_candidate_has_failed() -> None:
    member = leaderless(3)
    member.polled(claims(t1=1), 110.0)
    fail_to_connect(member, 110.0)
    assert member.polled(claims(t1=1), 110.0 + CLAIM_STAGGER_S - 0.01) == CLAIM_DUE
    assert member.polled(claims(t1=1), 110.0 + CLAIM_STAGGER_S) == Campaign(2, MEMBERSHIP)


def test_turns_begin_with_the_loss_if_the_last_answer_was_long_before() -> None:
    member = leaderless(3, last_answer=100.0 - 2 * FENCE_S)
    assert member.polled(NOTHING, 100.0 + 2 * CLAIM_STAGGER_S - 0.01) == CLAIM_DUE
    assert member.polled(NOTHING, 100.0 + 2 * CLAIM_STAGGER_S) == Campaign(1, MEMBERSHIP)


def test_a_candidate_that_may_have_won_is_fenced_as_a_leader_is() -> None:
    member = leaderless(2)
    member.polled(claims(t1=1), 109.0)
    member.connected()
    member.lost(LostLeader(MEMBERSHIP, 109.0, "is gone"), False, 110.0)
    member.cleaned(110.0)
    assert member.polled(claims(t1=1, t2=3), 109.0 + FENCE_S - 1.0) == WAIT
    assert member.polled(claims(t1=1, t2=3), 109.0 + FENCE_S) == Connect(2, 3)


def test_the_membership_of_a_new_leader_begins_a_new_election_when_it_is_lost() -> None:
    member = leaderless(2)
    member.polled(claims(t1=1), 110.0)
    member.connected()
    newer = Membership(1, 1, 3, 1_000_000, ROSTER, frozenset({0, 9}))
    member.lost(LostLeader(newer, None, "has stepped down"), False, 300.0)
    member.cleaned(300.0)
    assert member.polled(claims(t1=1), 300.0 + CLAIM_STAGGER_S) == Campaign(2, newer)


def test_of_several_claims_the_newest_is_joined() -> None:
    assert leaderless(1).polled(claims(t1=2, t3=4, t2=3), 100.0) == Connect(3, 4)


def test_the_claim_of_an_excluded_node_is_passed_over_and_its_term_is_not_taken_again() -> None:
    assert leaderless(1).polled(claims(t4=9), 100.0) == Campaign(5, MEMBERSHIP)
    assert leaderless(1).polled(claims(t4=9, t3=2), 100.0) == Connect(3, 2)


def test_a_member_gives_up_when_no_candidate_got_a_majority_for_long_and_never_exits_with_0() -> None:
    member = leaderless(1)
    assert leaderless(1).polled(claims(t1=3), 100.0 + LEADER_SEARCH_TIMEOUT_S) == Connect(1, 3)
    effect = member.polled(NOTHING, 100.0 + LEADER_SEARCH_TIMEOUT_S)
    assert effect == EndLeaderless("the leader n0 fell silent; no majority of the nodes is left")
    member.leaderless_ended()
    assert member.polled(NOTHING, 200.0) == ExitAgent(INFRASTRUCTURE_FAILED)


def test_there_is_time_for_several_candidates_before_members_leave() -> None:
    assert LEADER_SEARCH_TIMEOUT_S >= 3 * ELECTION_TIMEOUT_S
