"""Seeded schedules of small clusters under random faults: nothing that must never be is ever seen, and all end.

And the other way round: with one rule broken on purpose the same schedules show it, so the looking is worth something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from muster.election import campaign
from muster.election.membership import LEASE_S, Membership
from muster.election.quorum_lease import QuorumLease
from muster.lifecycle.config import RESTART, RunConfig
from muster.lifecycle.events import Arrived, DriverEnded, Event, HeadUp, NodeGone, NodeReady
from muster.lifecycle.services import Services
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState
from tests.sim import host, member, simulate
from tests.sim.agent import Surroundings
from tests.sim.follower import Heir
from tests.sim.large import Large
from tests.sim.large import simulate as simulate_large
from tests.sim.leader import Lead
from tests.sim.member import Member
from tests.sim.schedule import run, with_services
from tests.sim.world import World

SCHEDULES = 1000


def first_broken(seeds: int) -> str | None:
    return next((result.broken for result in map(run, range(seeds)) if result.broken), None)


# -- the rules as they are --------------------------------------------------------------------------------------


def test_a_thousand_schedules_with_random_faults_break_no_invariant() -> None:
    results = [run(seed) for seed in range(SCHEDULES)]
    assert [f"seed {result.seed}: {result.broken}" for result in results if result.broken] == []
    assert Counter(result.terms > 1 for result in results)[True] > SCHEDULES / 20  # leads were lost, and followed
    assert Counter(result.cycles > 0 for result in results)[True] > SCHEDULES / 20


def test_with_services_no_driver_starts_before_them_whatever_is_lost() -> None:
    results = [run(seed, draw=with_services) for seed in range(SCHEDULES // 2)]
    assert [f"seed {result.seed}: {result.broken}" for result in results if result.broken] == []
    assert Counter(result.cycles > 0 for result in results)[True] > SCHEDULES / 40
    assert Counter(result.outcome for result in results)["succeeded"] > SCHEDULES / 5


def test_a_gate_that_holds_nobody_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Services, "open", True)
    broken = next(result.broken for seed in range(100) if (result := run(seed, draw=with_services)).broken)
    assert "starts before" in (broken or "")


def test_a_service_that_a_cycle_leaves_behind_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "DRIVER", host.SERVICE)  # the one kind that a member does not end
    broken = [result.broken for seed in range(300) if (result := run(seed, draw=with_services)).broken]
    assert any("runs on an active node" in (words or "") for words in broken)


def test_a_seed_gives_the_same_schedule_again_traced_or_not() -> None:
    one, again = run(7), run(7, traced=True)
    assert (one.seconds, one.steps, one.outcome) == (again.seconds, again.steps, again.outcome)


def test_what_many_schedules_break_is_told_by_its_seed_with_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "FENCE_S", 0.0)
    assert simulate.main(["--schedules", "500"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[-1].startswith("seed ") and "driver" in told[-1]
    assert any("claims term 1" in line for line in told)


def spare_plan(world: World) -> RunConfig:
    """With a spare, restarts and enough nodes for another leader."""
    nodes = world.chance.randint(3, 8)
    return RunConfig([f"n{rank}" for rank in range(nodes)], spares=1, on_node_loss=RESTART, max_restarts=1)


class LoseTheLead:
    """Once, under its driver, in one of three ways, and for good."""

    def __init__(self, around: Surroundings, agents: Sequence[Heir], until: float) -> None:
        self._around, self._agents = around, agents
        around.watch.on_note = self._note
        around.driver = lambda: (60.0, 0)
        self._done = False

    def _note(self, what: str) -> None:
        if what == "driver" and not self._done:
            self._done = True
            self._around.world.after(self._around.world.between(0.0, 40.0), self._strike)

    def _strike(self) -> None:
        agents = self._agents
        leader, others = agents[0], [agent.rank for agent in agents[1:]]
        way = self._around.world.chance.choice(["crash", "host", "network", "stop"])
        if way == "crash":
            leader.crash()
        elif way == "host":
            leader.lose_host()
        elif way == "network":
            ways = [pair for rank in others for pair in ((0, rank), (rank, 0))]
            self._around.network.block(ways, 1e6)
        else:
            leader.stop()
            self._around.world.after(120.0, leader.resume)


@pytest.mark.parametrize("seed", range(40))
def test_a_lost_leader_alone_never_ends_a_run_that_has_a_spare_and_a_restart(seed: int) -> None:
    result = run(seed, draw=spare_plan, faults=LoseTheLead)
    assert (result.broken, result.outcome) == (None, "succeeded")
    assert (result.terms, result.cycles) == (2, 1)


def test_a_large_run_goes_on_without_the_nodes_it_loses_and_without_its_leader() -> None:
    figures = simulate_large(Large(nodes=300, spares=12, losses=8, seed=3))
    assert figures["outcome"] == "the driver exited with 0"
    assert (figures["terms"], figures["cycles"]) == (2, 2)


class Searched(list):  # type: ignore[type-arg]
    """The nodes of a protocol; counts how many are looked at one after the other."""

    looks = 0

    def __iter__(self) -> Any:
        self.looks += len(self)
        return super().__iter__()


def searched(nodes: int) -> int:
    """From the first arrival to the last word of a node that is clean."""
    protocol = RunStateMachine(RunConfig([f"n{rank}" for rank in range(nodes)], spares=1), 0.0)
    protocol.nodes = looked = Searched(protocol.nodes)
    together: list[Event] = [HeadUp(), DriverEnded(0, "exited with 0")]
    for kind in (lambda rank: Arrived(rank, f"n{rank}"), NodeReady, NodeGone):
        for rank in range(nodes):
            protocol.handle(kind(rank), 0.0)
        if together:
            protocol.handle(together.pop(0), 0.0)
    assert protocol.state is RunState.SUCCEEDED
    return looked.looks


def test_ten_times_the_nodes_are_ten_times_the_work_for_the_leader_not_a_hundred_times() -> None:
    assert searched(2000) <= 12 * searched(200)


def many_spares(world: World) -> RunConfig:
    """The leader alone could do the work."""
    return RunConfig([f"n{rank}" for rank in range(5)], ray=False, spares=4, on_node_loss=RESTART, max_restarts=2)


class LeaveTheLeadAtOnce:
    """One node never comes. When the round has closed without it, nothing comes through to the leader any more."""

    def __init__(self, around: Surroundings, agents: Sequence[Heir], until: float) -> None:
        self._around, self._others = around, [agent.rank for agent in agents[1:]]
        around.driver = lambda: (3.0, 0)
        around.watch.on_note = self._note
        agents[-1].crash()

    def _note(self, what: str) -> None:
        if what == "round" and len(self._around.watch.terms) == 1:
            self._around.network.block([(rank, 0) for rank in self._others], 25.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_that_was_left_before_it_could_act_never_acts_though_all_others_have_ended(seed: int) -> None:
    result = run(seed, draw=many_spares, faults=LeaveTheLeadAtOnce)
    assert (result.broken, result.outcome, result.terms) == (None, "succeeded", 2)


class LoseTheFirstHost:
    """Before its agent has begun: no leader was there, and its launcher says nothing."""

    def __init__(self, around: Surroundings, agents: Sequence[Heir], until: float) -> None:
        agents[0].lose_host()


@pytest.mark.parametrize("seed", range(10))
def test_a_first_node_whose_host_is_lost_before_it_leads_is_stood_in_for(seed: int) -> None:
    result = run(seed, draw=many_spares, faults=LoseTheFirstHost)
    assert (result.broken, result.outcome, result.terms, result.cycles) == (None, "succeeded", 1, 0)


# -- one of them broken -----------------------------------------------------------------------------------------


def test_members_that_do_not_wait_for_the_fence_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "FENCE_S", 0.0)
    assert "lives when" in (first_broken(1000) or "")


def test_half_being_enough_for_a_candidate_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "majority", lambda share, roster: 2 * share >= len(roster))
    assert "lives when" in (first_broken(1000) or "")


class AnswersThatComeLate:
    """While the driver runs: answers to the leader are held up, then its beats are cut off, then those answers
    arrive."""

    def __init__(self, around: Surroundings, agents: Sequence[Heir], until: float) -> None:
        self._around, self._others = around, [agent.rank for agent in agents[1:]]
        around.driver = lambda: (30.0, 0)
        around.watch.on_note = self._note

    def _note(self, what: str) -> None:
        network, world = self._around.network, self._around.world
        if what == "driver" and len(self._around.watch.terms) == 1:
            network.block([(rank, 0) for rank in self._others], 6.9)  # the lease lasts a little longer
            world.after(3.0, network.block, [(0, rank) for rank in self._others], 40.0)


def test_a_lease_from_the_receipt_of_an_answer_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Lead.answered

    def late(self: Lead, rank: int, sent: float | None, version: int) -> None:
        real(self, rank, None if sent is None else self._agent.now, version)

    assert [run(seed, draw=many_spares, faults=AnswersThatComeLate).broken for seed in range(20)] == [None] * 20
    monkeypatch.setattr(Lead, "answered", late)
    broken = (run(seed, draw=many_spares, faults=AnswersThatComeLate).broken for seed in range(20))
    assert "lives when" in next(filter(None, broken))


def test_taking_an_ended_connection_for_an_ended_process_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Lead.lost

    def hasty(self: Lead, rank: int, silent: bool) -> None:
        if self.quorum is not None and not silent:
            self._tell(self.quorum.died(rank))
            self._renew()
        real(self, rank, silent)

    monkeypatch.setattr(Lead, "lost", hasty)
    assert "lives when" in (first_broken(2000) or "")


def test_a_lease_that_nobody_enforces_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.Host, "renew", lambda self, until: None)
    assert "lives" in (first_broken(500) or "")


def test_counting_the_dead_out_before_the_first_lease_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = QuorumLease.__init__

    def forgetful(self: QuorumLease, membership: Membership) -> None:
        real(self, membership)
        self._held = True

    monkeypatch.setattr(QuorumLease, "__init__", forgetful)
    monkeypatch.setattr(QuorumLease, "take", lambda self, now: self.settled and self.lease() > now)
    results = [run(seed, draw=many_spares, faults=LeaveTheLeadAtOnce) for seed in range(20)]
    assert any("starts after" in (result.broken or "") for result in results)


def test_supervisors_that_kill_too_late_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "KILL_S", 8.0)
    assert first_broken(500) is not None


def test_a_member_whose_lease_runs_from_the_receipt_of_a_beat_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: Member, echo: float) -> None:
        if self.membership is not None and not self.leads:
            self.host.renew(self.now + LEASE_S)

    monkeypatch.setattr(member.Member, "_renew", late)
    assert "silent" in (first_broken(1000) or "")
