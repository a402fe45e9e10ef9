"""The simulator detects each rule that is broken on purpose, and nothing in the same schedules without the break.

A rule whose break random schedules would find too rarely has a directed schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from muster.election.candidate import Candidacy
from muster.election.follower import FollowerEffect, FollowerElection, LostLeader
from muster.election.leader_lease import AuthorizeCycle, AuthorizeOutcome, LeaderLease, LeaseEffect, RenewLease
from muster.election.membership import Membership
from muster.election.quorum_lease import QuorumLease
from muster.election.timing import LEASE_S
from muster.lifecycle import events as m
from muster.lifecycle import node_sets, policy, state_machine
from muster.lifecycle.config import REPLACE, RESTART, RunConfig, TermStart
from muster.lifecycle.control import ControlKind, ControlState
from muster.lifecycle.gathering import GatheringRound
from muster.lifecycle.node_sets import AvailableSpares
from muster.lifecycle.policy import Decision, FailureContext
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.state_machine import RunStateMachine
from muster.process.lease_enforcer import LeaseAction, LeaseEnforcer
from tests.sim.agent import Environment
from tests.sim.directed import CutTheLeaderOff, two_spares
from tests.sim.faults import Faults
from tests.sim.follower import Follower
from tests.sim.leader import Leader
from tests.sim.member import Member
from tests.sim.scenarios import Scenario, plain
from tests.sim.schedule import random_config, run
from tests.sim.world import World

RANDOM_SCHEDULES = 250
DIRECTED_SCHEDULES = 5

Patch = pytest.MonkeyPatch
FaultsFactory = Callable[[Environment, Sequence[Follower], float], object]


# -- directed schedules -----------------------------------------------------------------------------------------------


def one_active_of_five(world: World) -> RunConfig:
    """Return a configuration in which the leader is the only active node, and all others can replace it."""
    hosts = [f"n{node_index}" for node_index in range(5)]
    return RunConfig(
        hosts, ray=False, spares=4, on_node_loss=RESTART, max_restarts=3, restart_on_driver_failure=True, last_call=1.0
    )


def two_active_of_five(world: World) -> RunConfig:
    return replace(one_active_of_five(world), spares=3)


def two_nodes_that_may_restart(world: World) -> RunConfig:
    config = replace(one_active_of_five(world), hosts=["n0", "n1"], ray=True, spares=0)
    return replace(config, gather_timeout=40.0, start_timeout=20.0)


def gang(world: World, plan: RunConfig) -> tuple[RunConfig, Scenario]:
    return plan, Scenario(gang=True)


def with_spares(world: World) -> RunConfig:
    """Return a configuration that uses health, progress and topology."""
    reaction = world.chance.choice((REPLACE, RESTART))
    plan = replace(random_config(world), hosts=[f"n{node_index}" for node_index in range(8)], spares=4)
    failing = replace(plan, restart_on_driver_failure=True, max_restarts=3, no_progress_limit=1)
    return replace(failing, on_node_loss=reaction, topology=True, segment=2, last_call=5.0)


def three_to_six(world: World, plan: RunConfig) -> tuple[RunConfig, Scenario]:
    """Return an elastic run, in half of the schedules of a gang, in which two nodes arrive after the deadline."""
    hosts, is_gang = [f"n{node_index}" for node_index in range(6)], world.chance.random() < 0.5
    elastic = replace(plan, hosts=hosts, spares=0, min_nodes=3, gang=is_gang, ray=not is_gang)
    return elastic, Scenario(gang=is_gang, late_s=(0.0, 0.0, 0.0, 0.0, 60.0, 60.0))


def checked_gang(world: World, plan: RunConfig) -> tuple[RunConfig, Scenario]:
    domains = tuple(f"rack{node_index % 2}" for node_index in range(plan.nodes))
    return plan, Scenario(gang=not plan.ray, health=True, progress=True, stalls=True, domains=domains)


class Script:
    """Waits for notes of the checker and acts on them, each time once."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self.env, self.agents, self.world, self.network = env, agents, env.world, env.network
        self._notes: dict[str, int] = {}
        env.checker.on_note = self._note
        env.driver = lambda: (60.0, 0)
        self.begin()

    def begin(self) -> None:
        """Act before the first agent starts."""

    def _note(self, what: str) -> None:
        self._notes[what] = self._notes.get(what, 0) + 1
        self.on_note(what, self._notes[what])

    def on_note(self, what: str, count: int) -> None:
        """Act on the n-th note of this kind."""

    def isolate(self, ones: Sequence[int], others: Sequence[int], breaks: bool, seconds: float = 60.0) -> None:
        """Block all messages between two groups; with `breaks`, also end their connections."""
        pairs = [(one, other) for one in ones for other in others]
        if breaks:
            for one, other in pairs:
                self.network.break_between(one, other)
        self.network.block([*pairs, *((other, one) for one, other in pairs)], seconds)


class MajorityBreaksAway(Script):
    """Ends the connections of the first leader to three of its four members while the driver runs."""

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(5.0, self.isolate, [0, 1], [2, 3, 4], True)


class MajorityFallsSilent(Script):
    """Isolates the first leader and one member while the driver runs; no connection ends."""

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(5.0, self.isolate, [0, 1], [2, 3, 4], False)


class MemberMissesACycle(Script):
    """Lets the first candidate after the leader miss the membership of the second cycle, then loses the leader."""

    def begin(self) -> None:
        ends = iter([(10.0, 1)])
        self.env.driver = lambda: next(ends, (40.0, 0))

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(9.0, self.network.block, [(0, 1)], 60.0)
        elif (what, count) == ("driver", 2):
            self.world.after(3.0, self.agents[0].crash)


class MembersHearNothing(Script):
    """Blocks all messages of the leader when the first round has closed."""

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("round", 1):
            self.network.block([(0, node_index) for node_index in range(1, 5)], 40.0)


class SecondLeaderBreaksAway(Script):
    """Loses the first leader, and later ends all connections of the second one while its driver runs."""

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(3.0, self.agents[0].crash)
        elif (what, count) == ("driver", 2):
            second = self.env.checker.terms[max(self.env.checker.terms)]
            others = [node_index for node_index in range(1, 5) if node_index != second]
            self.world.after(3.0, self.isolate, [second], others, True)


class MostNodesAreLate(Script):
    """Keeps three of five nodes from the first leader for some time."""

    def begin(self) -> None:
        self.env.driver = lambda: (5.0, 0)
        self.isolate([0, 1], [2, 3, 4], False, 15.0)


class ExcludedNodeOutlivesTheLeader(Script):
    """Lets the node fail that would be the next leader, then loses the leader."""

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(3.0, self.agents[1].report, "health")
            self.world.after(10.0, self.agents[0].crash)


class MemberOutlivesItsLeader(Script):
    """Lets the majority leave the first leader, and an active member stay with that one until its lease ends."""

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(5.0, self.isolate, [0, 1], [2, 3, 4], False)
            self.world.after(14.0, self.isolate, [0], [1], False)


class LauncherReportsLiveTasks(Script):
    """Reports the ends of two tasks that live; later ends the connections of the leader to the majority."""

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.env.files.ended.update({3: self.world.now, 4: self.world.now})
            self.world.after(8.0, self.isolate, [0, 1], [2, 3, 4], True)


class StallIsReportedLate(Script):
    """Lets the first driver fail, and reports that it stalls while the second one runs."""

    def begin(self) -> None:
        ends = iter([(10.0, 1)])
        self.env.driver = lambda: next(ends, (40.0, 0))

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 2):
            self.world.after(3.0, self._report)

    def _report(self) -> None:
        leader = self.agents[0].leader
        assert leader is not None
        leader.stalled(0)


class StopWhileRunning(Script):
    """Requests the end of the run while the driver runs."""

    def begin(self) -> None:
        self.env.driver = lambda: (200.0, 0)

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(3.0, self._stop)

    def _stop(self) -> None:
        leader = self.agents[0].leader
        assert leader is not None
        leader.stop()


class ProgramRequests(Script):
    """Lets the program on the leader's node, or on another one, make a request while the first driver runs."""

    node_index, kind, at_once = 0, ControlKind.REQUEST_RESTART, True

    def begin(self) -> None:
        ends = iter([(30.0, 1)])
        self.env.driver = lambda: next(ends, (20.0, 0))

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(3.0, self.agents[self.node_index].request, self.kind, self.at_once)


class RestartIsRequested(ProgramRequests):
    """Requests a restart."""


class RestartsAreForbidden(ProgramRequests):
    """Forbids restarts before the driver fails."""

    kind = ControlKind.NO_RESTART


class NodeIsExcluded(ProgramRequests):
    """Excludes the only active node, which leads."""

    kind = ControlKind.EXCLUDE_NODE


class LeaderIsExcluded(ProgramRequests):
    """Excludes the leader's node from the cycle that follows when the driver fails."""

    kind, at_once = ControlKind.EXCLUDE_NODE, False


class RestartsAreForbiddenBeforeTheLoss(RestartsAreForbidden):
    """Forbids restarts before the leader is lost."""

    def on_note(self, what: str, count: int) -> None:
        super().on_note(what, count)
        if (what, count) == ("driver", 1):
            self.world.after(6.0, self.agents[0].crash)


class NodeIsExcludedBeforeTheLoss(RestartsAreForbiddenBeforeTheLoss):
    """Excludes the next leader's node, which is a second active one, before the leader is lost."""

    kind, at_once, node_index = ControlKind.EXCLUDE_NODE, False, 1


class LeaderIsFrozen(Script):
    """Stops everything on the leader's host while the driver runs; meanwhile the others elect another leader."""

    def on_note(self, what: str, count: int) -> None:
        if (what, count) == ("driver", 1):
            self.world.after(5.0, self.agents[0].suspend_host, True)
            self.world.after(50.0, self.agents[0].resume_host)


# -- sabotages ----------------------------------------------------------------------------------------------------


def ignore_joint_membership(patch: Patch) -> None:
    patch.setattr(Membership, "rosters", property(lambda self: (self.roster,)))


def need_one_answer_less(patch: Patch) -> None:
    """Count the last member as if it answered whenever any member does."""
    real = QuorumLease.answered

    def answered(self: QuorumLease, node_index: int, sent: float | None, version: int) -> bool:
        in_force = real(self, node_index, sent, version)
        phantom = max(self.membership.roster | self.membership.before)
        return real(self, phantom, sent, version) or in_force

    patch.setattr(QuorumLease, "answered", answered)


def allow_one_restart_more(patch: Patch) -> None:
    real = policy._restart_unless

    def restart(context: FailureContext, shortage: str | None) -> Decision:
        return real(replace(context, restarts=context.restarts - 1), shortage)

    patch.setattr(policy, "_restart_unless", restart)


def give_a_replacement_another_rank(patch: Patch) -> None:
    real = RunStateMachine._promote

    def promote(self: RunStateMachine, spare: int, rank: int, now: float, replaces: int | None = None) -> None:
        real(self, spare, rank + 1, now, replaces)

    patch.setattr(RunStateMachine, "_promote", promote)


def keep_failed_nodes(patch: Patch) -> None:
    patch.setattr(RunStateMachine, "_exclude", RunStateMachine._stop_node)


def begin_the_next_cycle_at_once(patch: Patch) -> None:
    real = RunStateMachine._restart_or_end

    def restart(self: RunStateMachine, decision: Decision, ended: m.RunOutcome, now: float, grace: float) -> None:
        running, self.driver_running = self.driver_running, False
        real(self, decision, ended, now, grace)
        if running:
            self._results.commands.append(m.EndDriver(grace, self.cycle))

    patch.setattr(RunStateMachine, "_restart_or_end", restart)


def keep_a_stale_membership(patch: Patch) -> None:
    real = Candidacy.joined
    patch.setattr(Candidacy, "joined", lambda self, node_index, known, sent: real(self, node_index, self._own, sent))


def start_drivers_that_nobody_knows(patch: Patch) -> None:
    def wanted(self: LeaderLease, cycle: int, now: float) -> list[LeaseEffect]:
        return [AuthorizeCycle(cycle)]

    patch.setattr(LeaderLease, "cycle_wanted", wanted)


def leave_a_second_leader_without_a_fence(patch: Patch) -> None:
    real = FollowerElection.lost

    def lost(self: FollowerElection, loss: LostLeader, leading: bool, now: float) -> FollowerEffect:
        unfenced = replace(loss, last_answer=None) if self.term else loss
        return real(self, unfenced, leading, now)

    patch.setattr(FollowerElection, "lost", lost)


def accept_events_of_other_cycles(patch: Patch) -> None:
    patch.setattr(RunStateMachine, "_is_stale", lambda self, event: False)


def close_rounds_without_a_majority(patch: Patch) -> None:
    patch.setattr(GatheringRound, "_half_available", lambda self: True)


def let_excluded_nodes_be_candidates(patch: Patch) -> None:
    real = FollowerElection.lost

    def lost(self: FollowerElection, loss: LostLeader, leading: bool, now: float) -> FollowerEffect:
        if loss.membership is not None:
            ours, known = {self._node_index}, loss.membership
            loss = replace(loss, membership=replace(known, roster=known.roster | ours, excluded=known.excluded - ours))
        return real(self, loss, leading, now)

    patch.setattr(FollowerElection, "lost", lost)


def report_success_as_failure(patch: Patch) -> None:
    real = RunStateMachine._on_driver_ended

    def ended(self: RunStateMachine, event: m.DriverEnded, now: float) -> None:
        real(self, replace(event, code=event.code or 1), now)

    patch.setitem(state_machine._HANDLERS, m.DriverEnded, ended)


def report_failure_as_success(patch: Patch) -> None:
    real = RunStateMachine._on_driver_ended

    def ended(self: RunStateMachine, event: m.DriverEnded, now: float) -> None:
        real(self, replace(event, code=0), now)

    patch.setitem(state_machine._HANDLERS, m.DriverEnded, ended)


def conclude_before_nodes_are_clean(patch: Patch) -> None:
    def conclude(self: RunStateMachine) -> None:
        if self.state is state_machine.RunState.FINISHING and not self.driver_running:
            self._conclude()

    patch.setattr(RunStateMachine, "_maybe_conclude", conclude)


def trust_every_report_of_the_launcher(patch: Patch) -> None:
    def died(self: LeaderLease, node_index: int, now: float) -> list[LeaseEffect]:
        return self._in_force(self._quorum.died(node_index), now)

    patch.setattr(LeaderLease, "died", died)


def take_an_ended_connection_for_an_ended_process(patch: Patch) -> None:
    real = Leader.lost

    def lost(self: Leader, node_index: int, silent: bool) -> None:
        if not silent:
            self._execute(self.lease.died(node_index, self._agent.now))
        real(self, node_index, silent)

    patch.setattr(Leader, "lost", lost)


def start_before_earlier_processes_have_ended(patch: Patch) -> None:
    real = LeaderLease.joined

    def joined(self: LeaderLease, node_index: int, sent: float, version: int, now: float) -> list[LeaseEffect]:
        self._unfenced.clear()
        return real(self, node_index, sent, version, now)

    patch.setattr(LeaderLease, "joined", joined)


def use_unhealthy_nodes(patch: Patch) -> None:
    patch.setattr(RunNode, "eligible", property(lambda self: self.role is not Role.EXCLUDED))
    patch.setattr(node_sets, "_traits", node_sets._traits.__wrapped__)  # those that are kept are of the intact rule


def ignore_missing_progress(patch: Patch) -> None:
    real = policy._restart_unless

    def restart(context: FailureContext, shortage: str | None) -> Decision:
        return real(replace(context, without_progress=0), shortage)

    patch.setattr(policy, "_restart_unless", restart)


def replace_nodes_from_other_domains(patch: Patch) -> None:
    real = AvailableSpares.nearest
    patch.setattr(AvailableSpares, "nearest", lambda self, location, same_domain: real(self, location, False))


def give_no_leases_without_failover(patch: Patch) -> None:
    real = Member._renew
    patch.setattr(Member, "_renew", lambda self, echo: real(self, echo) if self.membership is not None else None)


def record_outcomes_before_the_first_lease(patch: Patch) -> None:
    patch.setattr(LeaderLease, "outcome_wanted", lambda self, now: [AuthorizeOutcome()])


def ignore_stop_requests(patch: Patch) -> None:
    patch.setitem(state_machine._HANDLERS, m.StopRequested, lambda self, event, now: None)


def ignore_requested_restarts(patch: Patch) -> None:
    patch.setitem(state_machine._HANDLERS, m.RestartRequested, lambda self, event, now: None)


def restart_after_a_ban(patch: Patch) -> None:
    patch.setattr(ControlState, "restrict", lambda self, decision: decision)


def ignore_exclusions_at_once(patch: Patch) -> None:
    real = RunStateMachine._on_exclusion_requested

    def requested(self: RunStateMachine, event: m.ExclusionRequested, now: float) -> None:
        real(self, replace(event, at_once=False), now)

    patch.setitem(state_machine._HANDLERS, m.ExclusionRequested, requested)


def use_excluded_nodes_again(patch: Patch) -> None:
    """Exclude nothing at the next restart, and let the leader's own node stay."""
    real = RunStateMachine._next_cycle

    def next_cycle(self: RunStateMachine, now: float) -> None:
        self.control.leaving.clear()
        real(self, now)

    patch.setattr(RunStateMachine, "_next_cycle", next_cycle)


def forget_requests_with_the_leader(patch: Patch) -> None:
    real = RunStateMachine.__init__

    def init(self: RunStateMachine, config: RunConfig, now: float, term_start: TermStart) -> None:
        real(self, config, now, replace(term_start, leaving=frozenset(), no_restart=None))

    patch.setattr(RunStateMachine, "__init__", init)


def renew_an_expired_lease_without_a_majority(patch: Patch) -> None:
    def resumed(self: LeaderLease, seconds: float, now: float, expired: bool = False) -> list[LeaseEffect]:
        self._until = now + LEASE_S
        return [RenewLease(self._until, again=True)]

    patch.setattr(LeaderLease, "resumed", resumed)


def continue_processes_under_an_expired_lease(patch: Patch) -> None:
    real = LeaseEnforcer.check

    def check(self: LeaseEnforcer, now: float, expired: bool, fenced: bool) -> LeaseAction:
        action = real(self, now, expired, fenced)
        return LeaseAction.CONTINUE if action is LeaseAction.STOP else action

    patch.setattr(LeaseEnforcer, "check", check)


def begin_with_too_few_nodes(patch: Patch) -> None:
    patch.setattr(GatheringRound, "_half_available", lambda self: True)
    patch.setattr(node_sets.NodeSets, "enough_available", lambda self, leader: leader in self.available)
    patch.setattr(node_sets.PoolIndex, "is_sufficient", lambda self, leader, by_location=True, without=(): True)


def let_a_gang_grow(patch: Patch) -> None:
    real = GatheringRound.take_rank

    def take_rank(self: GatheringRound) -> tuple[int, int] | None:
        self._config = replace(self._config, gang=False)
        return real(self)

    patch.setattr(GatheringRound, "take_rank", take_rank)


def give_an_open_rank_again(patch: Patch) -> None:
    real = GatheringRound.take_rank

    def take_rank(self: GatheringRound) -> tuple[int, int] | None:
        taken = real(self)
        if taken is not None:
            self.return_rank(taken[1])
        return taken

    patch.setattr(GatheringRound, "take_rank", take_rank)


@dataclass(frozen=True)
class Sabotage:
    """One broken rule, the schedules that show it, and the text of the violation."""

    breaks: Callable[[Patch], None]
    found: str
    faults: FaultsFactory = field(default=Faults)
    draw: Callable[[World], RunConfig] = random_config
    seeds: int = RANDOM_SCHEDULES
    scenario: Callable[[World, RunConfig], tuple[RunConfig, Scenario]] = plain


def directed(breaks: Callable[[Patch], None], found: str, faults: FaultsFactory) -> Sabotage:
    return Sabotage(breaks, found, faults, one_active_of_five, DIRECTED_SCHEDULES)


SABOTAGES = [
    directed(ignore_joint_membership, "lives when", MajorityBreaksAway),
    directed(need_one_answer_less, "lives when", MajorityFallsSilent),
    Sabotage(allow_one_restart_more, "is past the budget"),
    Sabotage(give_a_replacement_another_rank, "rank"),
    Sabotage(keep_failed_nodes, "the run may use it again"),
    Sabotage(begin_the_next_cycle_at_once, "begins, and the driver"),
    directed(keep_a_stale_membership, "begins with cycle 1 again", MemberMissesACycle),
    directed(start_drivers_that_nobody_knows, "lives when", MembersHearNothing),
    directed(leave_a_second_leader_without_a_fence, "lives when", SecondLeaderBreaksAway),
    directed(accept_events_of_other_cycles, "changes cycle 1", StallIsReportedLate),
    directed(close_rounds_without_a_majority, "could elect a leader", MostNodesAreLate),
    directed(let_excluded_nodes_be_candidates, "claims a term and is excluded", ExcludedNodeOutlivesTheLeader),
    Sabotage(report_success_as_failure, "succeeded, recorded is"),
    Sabotage(report_failure_as_success, "no driver of term"),
    Sabotage(conclude_before_nodes_are_clean, "waits no longer for"),
    directed(take_an_ended_connection_for_an_ended_process, "lives when", MajorityBreaksAway),
    directed(trust_every_report_of_the_launcher, "lives when", LauncherReportsLiveTasks),
    Sabotage(
        start_before_earlier_processes_have_ended,
        "lives when that of",
        MemberOutlivesItsLeader,
        two_active_of_five,
        20,
        gang,
    ),
    Sabotage(use_unhealthy_nodes, "is unhealthy", draw=with_spares, scenario=checked_gang),
    Sabotage(ignore_missing_progress, "without progress", draw=with_spares, scenario=checked_gang),
    Sabotage(replace_nodes_from_other_domains, "in several domains", draw=with_spares, scenario=checked_gang),
    Sabotage(record_outcomes_before_the_first_lease, "records an outcome, and", CutTheLeaderOff, two_spares, seeds=20),
    Sabotage(give_no_leases_without_failover, "silent, and its", draw=two_nodes_that_may_restart),
    Sabotage(begin_with_too_few_nodes, "and the job needs more", scenario=three_to_six),
    Sabotage(let_a_gang_grow, "it cannot grow", scenario=three_to_six),
    Sabotage(give_an_open_rank_again, "two nodes have one rank", scenario=three_to_six),
    directed(renew_an_expired_lease_without_a_majority, "goes on after", LeaderIsFrozen),
    directed(continue_processes_under_an_expired_lease, "goes on after", LeaderIsFrozen),
    directed(ignore_stop_requests, "goes on after a stop request", StopWhileRunning),
    directed(ignore_requested_restarts, "has requested a restart", RestartIsRequested),
    directed(restart_after_a_ban, "has forbidden restarts", RestartsAreForbidden),
    directed(ignore_exclusions_at_once, "works on, and a program has excluded it", NodeIsExcluded),
    directed(use_excluded_nodes_again, "and a program excluded it", LeaderIsExcluded),
    directed(forget_requests_with_the_leader, "has forbidden restarts", RestartsAreForbiddenBeforeTheLoss),
    Sabotage(
        forget_requests_with_the_leader,
        "and a program excluded it",
        NodeIsExcludedBeforeTheLoss,
        two_active_of_five,
        DIRECTED_SCHEDULES,
    ),
]


def violations(sabotage: Sabotage) -> Iterator[str]:
    """Yield the violations in the schedules of this sabotage, with whatever is broken now."""
    draw, faults, scenario = sabotage.draw, sabotage.faults, sabotage.scenario
    results = (run(seed, draw=draw, faults=faults, scenario=scenario) for seed in range(sabotage.seeds))
    return (result.broken for result in results if result.broken is not None)


@cache
def violations_of_intact_rules(faults: Any, draw: Any, seeds: int, scenario: Any) -> list[str]:
    return list(violations(Sabotage(lambda patch: None, "", faults, draw, seeds, scenario)))


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.breaks.__name__)
def test_a_broken_rule_is_found_and_the_intact_one_is_not(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert violations_of_intact_rules(sabotage.faults, sabotage.draw, sabotage.seeds, sabotage.scenario) == []
    sabotage.breaks(monkeypatch)
    assert any(sabotage.found in text for text in violations(sabotage))
