"""What a leader sends, until when it may act, and when it steps down. Each test is a rule of the module's table."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from muster.election.leader_lease import (
    FIRST_LEASE_TIMEOUT_S,
    ROSTER_INTERVAL_PER_1000_S,
    AuthorizeCycle,
    AuthorizeOutcome,
    Broadcast,
    LeaderLease,
    LeaseEffect,
    RenewLease,
    RequestAnswers,
    SendMembership,
    StepDown,
)
from muster.election.membership import Membership, first_membership
from muster.election.timing import FENCE_S, LEASE_S
from muster.lifecycle.config import FAIL, RESTART, RunConfig, TermStart
from muster.lifecycle.events import Arrived, NodeLost, StopRequested, Tick
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState

NODES = 5


class LeaderOfARun:
    """A lease with its run: nodes arrive and join; events feed both."""

    def __init__(self, on_node_loss: str = RESTART, spares: int = 2, nodes: int = NODES) -> None:
        hosts = [f"n{index}" for index in range(nodes)]
        config = RunConfig(hosts, ray=False, spares=spares, on_node_loss=on_node_loss, max_restarts=2, last_call=1.0)
        self.run = RunStateMachine(config, 0.0)
        self.lease = LeaderLease(self.run, first_membership(nodes))

    def arrive(self, *node_indexes: int, now: float = 0.0) -> list[LeaseEffect]:
        effects: list[LeaseEffect] = []
        for index in node_indexes:
            effects += self.lease.joined(index, now, -1, now)
            self.run.handle(Arrived(index, f"n{index}"), now)
            effects += self.lease.run_changed(now)
        return effects

    def lose(self, node_index: int, now: float) -> list[LeaseEffect]:
        self.run.handle(NodeLost(node_index, "its host is down"), now)
        return self.lease.run_changed(now)

    def die(self, node_index: int, now: float) -> list[LeaseEffect]:
        return self.lease.died(node_index, now)

    def know(self, *node_indexes: int, sent: float | None = None, now: float = 0.0) -> list[LeaseEffect]:
        """Let these members answer with the version of the current membership."""
        version = self.lease.membership.version
        return [effect for index in node_indexes for effect in self.lease.answered(index, sent, version, now)]


def of_type(effects: Iterable[LeaseEffect], kind: type[LeaseEffect]) -> list[LeaseEffect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def holding(now: float = 0.0) -> LeaderOfARun:
    """Return a leader that all nodes have joined and that holds a lease from `now` on."""
    leader = LeaderOfARun()
    leader.arrive(*range(NODES), now=now)
    assert leader.run.state is not RunState.GATHERING
    assert of_type(leader.know(1, 2, sent=now, now=now), RenewLease) == [RenewLease(now + LEASE_S)]
    leader.know(3, 4, sent=now, now=now)
    return leader


# -- joined, run_changed ------------------------------------------------------------------------------------------


def test_a_member_that_joins_gets_the_membership() -> None:
    leader = LeaderOfARun()
    assert leader.lease.joined(1, 0.0, -1, 0.0) == [SendMembership(1, leader.lease.membership)]


def test_no_roster_is_sent_to_all_until_the_nodes_are_gathered() -> None:
    leader = LeaderOfARun()
    assert of_type(leader.arrive(0, 1, 2), Broadcast) == []
    assert leader.run.state is RunState.GATHERING
    assert of_type(leader.arrive(3, 4), Broadcast) == [Broadcast(leader.lease.membership)]


def test_the_first_roster_is_sent_even_if_it_is_the_one_the_leader_began_with() -> None:
    leader = LeaderOfARun()
    before = leader.lease.membership
    effects = leader.arrive(*range(NODES))
    assert of_type(effects, Broadcast) == [Broadcast(before)]


def test_a_lost_node_leaves_the_roster_and_is_excluded() -> None:
    leader = holding()
    (sent,) = leader.lose(4, 1.0)[:1]
    assert isinstance(sent, Broadcast)
    assert (sent.membership.roster, sent.membership.before) == ({0, 1, 2, 3}, frozenset(range(NODES)))
    assert sent.membership.excluded == {4}


def test_an_event_that_changes_no_node_sends_nothing() -> None:
    leader = holding()
    assert leader.lease.run_changed(1.0) == []


def test_a_change_waits_until_the_pending_one_is_in_force_and_follows_at_once() -> None:
    leader = holding()
    leader.lose(4, 1.0)
    assert leader.lose(3, 1.0) == []
    first, second = of_type(leader.know(1, 2, now=1.0), Broadcast)
    assert isinstance(first, Broadcast) and isinstance(second, Broadcast)
    assert (first.membership.roster, first.membership.before) == ({0, 1, 2, 3}, frozenset())
    assert (second.membership.roster, second.membership.before) == ({0, 1, 2}, {0, 1, 2, 3})


def large_run_with_a_lost_node() -> LeaderOfARun:
    """Return a leader of 2,500 nodes at 1 s, which has just sent that a node is lost, and all nodes know it."""
    leader = LeaderOfARun(spares=200, nodes=2500)
    leader.arrive(*range(2500))
    leader.know(*range(1, 2500), sent=0.0)
    assert [effect.membership.excluded for effect in broadcasts(leader.lose(2499, 1.0))] == [{2499}]
    leader.know(*range(1, 2499), sent=1.0, now=1.0)
    assert not leader.lease.membership.before
    return leader


def broadcasts(effects: Iterable[LeaseEffect]) -> list[Broadcast]:
    return [effect for effect in effects if isinstance(effect, Broadcast)]


def test_a_large_run_sends_losses_together_that_follow_soon_after_another() -> None:
    leader = large_run_with_a_lost_node()
    wait = 2 * ROSTER_INTERVAL_PER_1000_S
    assert [broadcasts(leader.lose(node, 1.0 + 0.5 * wait)) for node in range(1000, 1100)] == [[]] * 100
    (together,) = broadcasts(leader.lease.run_changed(1.0 + wait))
    assert together.membership.excluded == {2499, *range(1000, 1100)}


def test_a_new_cycle_of_a_large_run_is_sent_at_once() -> None:
    leader = large_run_with_a_lost_node()
    leader.run.cycle += 1
    (sent,) = broadcasts(leader.lease.run_changed(1.0))
    assert sent.membership.cycle == leader.run.cycle


def test_a_run_with_an_outcome_sends_no_new_roster() -> None:
    leader = holding()
    leader.run.handle(StopRequested("stopped", 15, 5.0), 1.0)
    assert leader.lose(4, 1.0) == []


# -- the lease ----------------------------------------------------------------------------------------------------


def test_there_is_no_lease_before_a_roster_of_this_leader_was_sent() -> None:
    leader = LeaderOfARun()
    leader.arrive(0, 1, 2)
    assert of_type(leader.know(1, 2, sent=0.0), RenewLease) == []


def test_the_first_lease_needs_half_of_the_roster_including_the_dead() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    assert leader.know(1, sent=0.0) == []
    assert leader.lease.died(3, 0.0) == [] and leader.lease.died(4, 0.0) == []
    assert leader.know(2, sent=0.0) == [RenewLease(LEASE_S)]


def test_answers_of_half_renew_the_lease_from_the_time_the_heartbeat_was_sent() -> None:
    leader = holding()
    assert leader.know(1, sent=4.0, now=5.0) == []
    assert leader.know(2, sent=3.0, now=5.0) == [RenewLease(3.0 + LEASE_S)]


def test_a_renewal_that_changes_nothing_is_not_repeated() -> None:
    leader = holding()
    leader.know(1, 2, sent=3.0, now=5.0)
    assert leader.know(3, sent=2.0, now=5.0) == []


def test_a_held_lease_does_not_count_the_dead_and_has_no_end_when_none_is_left() -> None:
    leader = holding()
    effects = [effect for index in range(1, NODES) for effect in (*leader.die(index, 1.0), *leader.lose(index, 1.0))]
    assert of_type(effects, RenewLease)[-1] == RenewLease(None)
    assert leader.lease.tick(1000.0) == []


def test_a_dead_member_counts_until_it_has_left_the_run_as_well() -> None:
    leader = holding()
    assert [effect for index in range(1, NODES) for effect in leader.die(index, 1.0)] == []
    assert of_type(leader.lease.tick(LEASE_S), StepDown)


def test_a_member_that_answers_after_its_end_was_reported_is_not_dead() -> None:
    leader = holding()
    for index in range(1, NODES):
        leader.die(index, 1.0)
    leader.know(*range(1, NODES), sent=2.0, now=2.0)
    for index in range(1, NODES):
        leader.lose(index, 3.0)
    assert of_type(leader.lease.tick(2.0 + LEASE_S), StepDown)


def test_an_answer_to_an_earlier_heartbeat_does_not_disprove_the_end_of_a_member() -> None:
    leader = holding()
    for index in range(1, NODES):
        leader.die(index, 1.0)
    leader.know(*range(1, NODES), sent=0.5, now=2.0)
    effects = [effect for index in range(1, NODES) for effect in leader.lose(index, 3.0)]
    assert of_type(effects, RenewLease)[-1] == RenewLease(None)


def test_the_reported_end_of_a_node_does_not_count_if_it_joins_later() -> None:
    leader = LeaderOfARun()
    leader.die(4, 0.0)
    leader.arrive(*range(NODES))
    leader.know(1, 2, 3, 4, sent=0.0)
    leader.lose(4, 1.0)
    assert leader.know(1, sent=3.0, now=3.0) == []  # without node 4 this answer would be half of both rosters


class SecondLeader(LeaderOfARun):
    """Node 1, which leads term 1 after node 0 and has a lease."""

    def __init__(self, *joined: int, in_use: frozenset[int] | None = None) -> None:
        super().__init__()
        start = TermStart(1, 1, 1, frozenset({0}), "n0 is gone", 0)
        self.run = RunStateMachine(self.run.config, 0.0, start)
        membership = Membership(1, 1, 1, 1_000_000, frozenset(range(NODES)), frozenset({0}))
        self.lease = LeaderLease(self.run, membership, in_use)
        self.run.start(0.0)
        self.arrive(*joined)
        self.run.handle(Tick(), 2.0)  # the last call is over
        self.lease.run_changed(2.0)
        self.know(*joined, sent=2.0, now=2.0)


def test_a_later_leader_starts_its_driver_at_once_if_all_members_of_the_last_one_have_joined() -> None:
    leader = SecondLeader(1, 2, 3, 4)
    assert leader.lease.cycle_wanted(1, 2.0) == [AuthorizeCycle(1)]


def test_a_later_leader_waits_until_a_missing_member_of_the_last_one_is_fenced() -> None:
    leader = SecondLeader(1, 2, 3)
    leader.know(1, 2, 3, now=2.0)  # the roster that is in force now
    assert leader.lease.cycle_wanted(1, 2.0) == []
    leader.know(1, 2, 3, sent=FENCE_S - 1.0, now=FENCE_S - 1.0)
    assert leader.lease.tick(FENCE_S - 0.5) == []
    assert leader.lease.tick(FENCE_S) == [AuthorizeCycle(1)]


def test_a_later_leader_waits_for_an_excluded_node_that_may_run_processes_until_it_joins() -> None:
    leader = SecondLeader(1, 2, 3, 4, in_use=frozenset(range(NODES)))
    assert leader.lease.cycle_wanted(1, 2.0) == [] and leader.lease.tick(3.0) == []
    assert AuthorizeCycle(1) in leader.lease.joined(0, 3.0, -1, 3.0)


def test_a_later_leader_waits_for_no_node_that_is_out_of_use() -> None:
    leader = SecondLeader(1, 2, 3, in_use=frozenset({1, 2, 3}))
    leader.know(1, 2, 3, now=2.0)  # the roster that is in force now
    assert leader.lease.cycle_wanted(1, 2.0) == [AuthorizeCycle(1)]


def test_a_lease_that_is_over_authorizes_no_cycle() -> None:
    leader = SecondLeader(1, 2, 3)
    leader.know(1, 2, 3, now=2.0)  # the roster that is in force now
    leader.lease.cycle_wanted(1, 2.0)
    assert leader.lease.expired() and leader.lease.tick(FENCE_S) == []


@pytest.mark.parametrize("event", ["answered", "died", "run_changed", "tick"])
def test_a_lease_that_has_ended_is_never_renewed_and_ends_the_term_once(event: str) -> None:
    leader = holding()
    lease, late = leader.lease, LEASE_S
    effects = {
        "answered": lambda: lease.answered(1, late, 9, late),
        "died": lambda: lease.died(1, late),
        "run_changed": lambda: lease.run_changed(late),
        "tick": lambda: lease.tick(late),
    }
    assert of_type(effects[event](), StepDown) == [StepDown("its lease has expired")] and lease.over
    assert [effect for each in effects.values() for effect in each()] == []
    assert lease.joined(1, late, 9, late) == [] and lease.cycle_wanted(0, late) == [] and lease.expired() == []


def test_a_lease_lasts_until_its_end() -> None:
    assert holding().lease.tick(LEASE_S - 0.01) == []


def test_an_expiry_that_the_supervisors_see_ends_the_term() -> None:
    lease = holding().lease
    assert of_type(lease.expired(), StepDown) and lease.over


# -- cycles -------------------------------------------------------------------------------------------------------


def test_a_cycle_is_authorized_at_once_if_every_next_leader_would_know_of_it() -> None:
    assert holding().lease.cycle_wanted(0, 1.0) == [AuthorizeCycle(0)]


def test_a_cycle_waits_for_the_first_lease() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    assert leader.lease.cycle_wanted(0, 0.0) == [] and leader.know(1, sent=0.0) == []
    assert leader.know(2, sent=0.0) == [RenewLease(LEASE_S), AuthorizeCycle(0)]
    assert of_type(leader.know(3, sent=1.0, now=1.0), AuthorizeCycle) == []


def test_a_cycle_that_all_know_of_waits_for_answers_that_are_recent_enough_for_a_lease() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    leader.lease.cycle_wanted(0, 0.0)
    assert leader.know(1, 2, 3, 4, now=LEASE_S + 1) == []
    assert leader.know(1, 2, sent=LEASE_S, now=LEASE_S + 1) == [RenewLease(2 * LEASE_S), AuthorizeCycle(0)]


def test_a_cycle_waits_until_half_know_of_the_membership_that_names_it() -> None:
    leader = holding()
    leader.lose(4, 1.0)
    assert leader.lease.cycle_wanted(0, 1.0) == []
    assert of_type(leader.know(1, now=1.0), AuthorizeCycle) == []
    assert of_type(leader.know(2, now=1.0), AuthorizeCycle) == [AuthorizeCycle(0)]


def test_a_cycle_that_no_membership_names_is_not_authorized() -> None:
    assert holding().lease.cycle_wanted(1, 1.0) == []


def test_a_newer_cycle_replaces_one_that_was_not_authorized() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    leader.lease.cycle_wanted(7, 0.0)
    leader.lease.cycle_wanted(0, 0.0)
    assert of_type(leader.know(1, 2, sent=0.0), AuthorizeCycle) == [AuthorizeCycle(0)]


def test_a_leader_without_a_majority_for_its_first_driver_steps_down() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    leader.lease.cycle_wanted(0, 2.0)
    assert leader.lease.tick(2.0 + FIRST_LEASE_TIMEOUT_S - 0.01) == []
    assert of_type(leader.lease.tick(2.0 + FIRST_LEASE_TIMEOUT_S), StepDown) and leader.lease.over


def test_a_leader_that_wants_no_driver_yet_may_wait_for_its_nodes() -> None:
    leader = LeaderOfARun()
    leader.arrive(0, 1)
    assert leader.lease.tick(10 * FIRST_LEASE_TIMEOUT_S) == []


# -- without failover ---------------------------------------------------------------------------------------------


def test_without_failover_there_is_neither_membership_nor_lease_and_every_cycle_may_start() -> None:
    leader = LeaderOfARun(on_node_loss=FAIL, spares=0)
    assert leader.arrive(*range(NODES)) == [] and leader.know(1, 2, sent=0.0) == []
    assert leader.lease.died(1, 0.0) == []
    assert leader.lease.cycle_wanted(0, 0.0) == [AuthorizeCycle(0)]
    assert leader.lease.tick(1e6) == []


# -- outcome_wanted ---------------------------------------------------------------------------------------------------


def failed(leader: LeaderOfARun, now: float) -> list[LeaseEffect]:
    """Let the run fail: so many nodes are lost that none is left to replace one."""
    for node_index in (1, 2, 3):
        leader.run.handle(NodeLost(node_index, "fell silent"), now)
    assert leader.run.outcome is not None
    return leader.lease.outcome_wanted(now)


def test_a_leader_with_a_lease_may_record_an_outcome() -> None:
    assert failed(holding(), 1.0) == [AuthorizeOutcome()]


def test_a_leader_without_failover_may_record_an_outcome() -> None:
    leader = LeaderOfARun(on_node_loss=FAIL)
    leader.arrive(*range(NODES))
    assert failed(leader, 1.0) == [AuthorizeOutcome()]


def test_a_leader_that_was_cut_off_before_its_first_lease_steps_down_instead_of_recording_an_outcome() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    cut_off = LEASE_S + 1.0
    assert failed(leader, cut_off) == []
    assert leader.lease.tick(cut_off + FIRST_LEASE_TIMEOUT_S - 0.1) == []
    assert of_type(leader.lease.tick(cut_off + FIRST_LEASE_TIMEOUT_S), StepDown)


def test_an_outcome_is_recorded_as_soon_as_half_of_the_roster_answers() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    assert failed(leader, LEASE_S + 1.0) == []
    assert of_type(leader.know(3, sent=LEASE_S + 1.5, now=LEASE_S + 2.0), AuthorizeOutcome) == []
    assert of_type(leader.know(4, sent=LEASE_S + 1.5, now=LEASE_S + 2.0), AuthorizeOutcome) == [AuthorizeOutcome()]


def test_an_outcome_is_recorded_while_all_nodes_that_came_follow_the_first_leader() -> None:
    """The others know no membership, so they cannot elect another leader."""
    leader = LeaderOfARun()
    leader.arrive(0, 1)
    leader.run.handle(Tick(), leader.run.config.gather_timeout)
    assert leader.run.outcome is not None
    assert leader.know(1, sent=599.0, now=599.5) == []
    assert leader.lease.outcome_wanted(600.0) == [AuthorizeOutcome()]


def test_a_node_that_died_while_it_followed_the_first_leader_does_not_contest_an_outcome() -> None:
    leader = LeaderOfARun()
    leader.arrive(0, 1)
    leader.lose(1, 1.0)
    leader.run.handle(Tick(), leader.run.config.gather_timeout)
    assert leader.run.outcome is not None
    assert leader.lease.outcome_wanted(600.0) == []
    reported_in_time = LeaderOfARun()
    reported_in_time.arrive(0, 1)
    reported_in_time.die(1, 1.0)
    reported_in_time.lose(1, 1.0)
    reported_in_time.run.handle(Tick(), leader.run.config.gather_timeout)
    assert reported_in_time.lease.outcome_wanted(600.0) == [AuthorizeOutcome()]


def test_a_leader_whose_own_agent_has_not_joined_it_counts_no_majority() -> None:
    """That agent may have joined another leader."""
    leader = LeaderOfARun(nodes=3, spares=2)
    leader.arrive(1, 2)
    leader.run.handle(Tick(), 600.0)
    assert leader.run.outcome is not None
    assert leader.know(2, sent=599.0, now=599.5) == []
    assert leader.lease.outcome_wanted(600.0) == []


def test_a_stop_is_recorded_by_any_leader() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    leader.run.handle(StopRequested("stopped", 15, 5.0), LEASE_S + 1.0)
    assert leader.lease.outcome_wanted(LEASE_S + 1.0) == [AuthorizeOutcome()]


# -- the last membership --------------------------------------------------------------------------------------------


def test_the_last_membership_of_a_leader_excludes_it() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    last = leader.lease.last_membership(1)
    assert (last.roster, last.excluded, last.version) == ({1, 2, 3, 4}, {0}, leader.lease.membership.version + 1)


def test_the_last_membership_names_the_cycle_that_has_not_begun_although_another_change_is_pending() -> None:
    leader = holding()
    leader.lose(4, 1.0)
    assert leader.lease.membership.before
    leader.run.cycle = 1
    assert leader.lease.run_changed(1.0) == [] and leader.lease.membership.cycle == 0
    assert leader.lease.last_membership(1).cycle == 1


def test_the_last_membership_of_a_leader_without_failover_names_the_only_node_that_may_lead() -> None:
    leader = LeaderOfARun(on_node_loss=FAIL)
    leader.arrive(*range(NODES))
    leader.lose(4, 1.0)
    last = leader.lease.last_membership(2)
    assert (last.roster, last.excluded, last.cycle) == ({2}, {0, 4}, 0)


def test_a_later_leader_without_failover_starts_its_driver_at_once() -> None:
    run = RunStateMachine(RunConfig([f"n{index}" for index in range(3)], ray=False, spares=1), 0.0)
    last = first_membership(3).handed_to(1, frozenset({0}))
    lease = LeaderLease(run, Membership(1, 1, 0, 1_000_000, last.roster, last.excluded), frozenset({2}))
    assert lease.joined(1, 0.0, 1, 0.0) == []
    assert lease.cycle_wanted(0, 1.0) == [AuthorizeCycle(0)]


# -- resumed --------------------------------------------------------------------------------------------------------

STOP_S = 60.0


def stopped(seconds: float = STOP_S) -> tuple[LeaderOfARun, list[LeaseEffect]]:
    """Return a leader that was stopped for this long after it got its lease, and what it does at once."""
    leader = holding()
    return leader, leader.lease.resumed(seconds, 0.5 + seconds)


def test_a_leader_that_was_stopped_longer_than_its_lease_asks_its_members_and_does_not_act() -> None:
    leader, effects = stopped()
    assert effects == [RequestAnswers()]
    assert leader.lease.lapsed and not leader.lease.over
    assert leader.lease.cycle_wanted(0, 61.0) == []
    assert leader.lose(4, 61.0) == []


def test_it_acts_again_once_half_of_the_members_have_answered() -> None:
    leader, _ = stopped()
    assert leader.know(0, 1, sent=60.5, now=61.0) == []
    effects = leader.know(2, sent=60.6, now=61.0)
    assert of_type(effects, RenewLease) == [RenewLease(60.5 + LEASE_S, again=True)]
    assert of_type(effects, RequestAnswers) == [RequestAnswers()]
    assert not leader.lease.lapsed
    assert not any(renewal.again for renewal in of_type(leader.know(1, 2, sent=63.0, now=63.0), RenewLease))  # type: ignore[union-attr]


def test_it_steps_down_if_the_majority_does_not_answer_within_a_lease() -> None:
    leader, _ = stopped()
    leader.know(0, 1, sent=60.5, now=61.0)
    assert leader.lease.tick(60.5 + LEASE_S - 0.1) == []
    assert of_type(leader.lease.tick(60.5 + LEASE_S), StepDown)
    assert leader.know(2, 3, sent=62.0, now=71.0) == []


def test_it_steps_down_at_once_if_its_processes_were_killed() -> None:
    leader, _ = stopped()
    assert of_type(leader.lease.fenced(), StepDown)


def test_a_lease_that_ends_right_after_a_stop_is_acquired_again() -> None:
    leader = holding()
    assert leader.lease.resumed(8.0, 8.5) == [RequestAnswers()]
    assert leader.lease.tick(LEASE_S) == [RequestAnswers()]
    assert leader.lease.lapsed
    assert of_type(leader.know(0, 1, 2, sent=LEASE_S, now=10.0), RenewLease) == [RenewLease(2 * LEASE_S, again=True)]
    assert of_type(leader.lease.tick(2 * LEASE_S), StepDown)


def test_a_lease_that_had_ended_before_the_stop_is_lost() -> None:
    leader = holding()
    assert of_type(leader.lease.resumed(STOP_S, LEASE_S + STOP_S), StepDown)


def test_a_stop_within_the_lease_only_asks_for_answers() -> None:
    leader = holding()
    assert leader.lease.resumed(5.0, 5.5) == [RequestAnswers()]
    assert not leader.lease.lapsed


def test_the_end_of_the_lease_by_another_clock_counts() -> None:
    leader = holding()
    leader.lease.resumed(STOP_S, 1.0, expired=True)
    assert leader.lease.lapsed


def test_a_second_stop_makes_it_ask_again() -> None:
    leader, _ = stopped()
    leader.know(0, 1, sent=60.5, now=61.0)
    assert leader.lease.resumed(30.0, 91.0) == [RequestAnswers()]
    assert leader.know(2, sent=60.5, now=91.0) == []
    assert of_type(leader.know(0, 1, 2, sent=91.0, now=91.5), RenewLease)


def test_what_waits_for_the_first_lease_waits_for_longer_by_the_stop() -> None:
    leader = LeaderOfARun()
    leader.arrive(*range(NODES))
    leader.lease.cycle_wanted(0, 1.0)
    leader.lease.resumed(600.0, 602.0)
    assert leader.lease.tick(603.0) == []
    assert of_type(leader.lease.tick(601.0 + FIRST_LEASE_TIMEOUT_S), StepDown)


def test_a_run_without_failover_has_no_lease_that_a_stop_could_end() -> None:
    leader = LeaderOfARun(on_node_loss=FAIL, spares=0)
    leader.arrive(*range(NODES))
    assert leader.lease.resumed(STOP_S, 61.0) == [RequestAnswers()]
    assert not leader.lease.lapsed
