"""Seeded schedules of small clusters under random faults violate no invariant, and all runs end.

With one rule broken on purpose the same schedules find the violation, which proves that the checks work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from muster.election import candidate, follower
from muster.election.membership import Membership
from muster.election.quorum_lease import QuorumLease
from muster.election.timing import LEASE_S
from muster.lifecycle.config import FAIL, REPLACE, RESTART, RunConfig
from muster.lifecycle.events import Arrived, DriverEnded, Event, HeadUp, NodeGone, NodeReady
from muster.lifecycle.services import Services
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState
from tests.sim import host, member, simulate
from tests.sim.agent import Environment
from tests.sim.directed import CutTheLeaderOff, FirstNodeFails, two_spares
from tests.sim.faults import SUSPENSIONS_S, suspend
from tests.sim.follower import Follower
from tests.sim.large import LargeRun
from tests.sim.large import simulate as simulate_large
from tests.sim.leader import Leader
from tests.sim.member import Member
from tests.sim.schedule import random_config_with_services, run, run_random
from tests.sim.world import World

SCHEDULES = 1000


def first_violation(seeds: int) -> str | None:
    return next((result.broken for result in map(run, range(seeds)) if result.broken), None)


# -- with intact rules -------------------------------------------------------------------------------------------


def test_a_thousand_schedules_with_random_faults_break_no_invariant() -> None:
    results = [run_random(seed) for seed in range(SCHEDULES)]
    assert [f"seed {result.seed}: {result.broken}" for result in results if result.broken] == []
    assert Counter(result.terms > 1 for result in results)[True] > SCHEDULES / 20  # leaders were lost and replaced
    assert Counter(result.cycles > 0 for result in results)[True] > SCHEDULES / 20


def test_no_driver_starts_before_its_services_whatever_is_lost() -> None:
    results = [run(seed, draw=random_config_with_services) for seed in range(SCHEDULES // 2)]
    assert [f"seed {result.seed}: {result.broken}" for result in results if result.broken] == []
    assert Counter(result.cycles > 0 for result in results)[True] > SCHEDULES / 40
    assert Counter(result.outcome for result in results)["succeeded"] > SCHEDULES / 5


def test_an_ineffective_gate_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Services, "gate_open", True)
    results = (run(seed, draw=random_config_with_services) for seed in range(100))
    broken = next(result.broken for result in results if result.broken)
    assert "starts before" in (broken or "")


def test_a_service_left_over_from_an_earlier_cycle_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "DRIVER", host.SERVICE)  # the kind that a member does not end
    broken = [result.broken for seed in range(300) if (result := run(seed, draw=random_config_with_services)).broken]
    assert any("runs on an active node" in (text or "") for text in broken)


def test_a_seed_gives_the_same_schedule_again_traced_or_not() -> None:
    one, again = run(7), run(7, traced=True)
    assert (one.seconds, one.steps, one.outcome) == (again.seconds, again.steps, again.outcome)


def test_a_violation_is_reported_with_its_seed_and_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follower, "FENCE_S", 0.0)
    assert simulate.main(["--schedules", "500", "--seed", "520"]) == 1
    output = capsys.readouterr().out.splitlines()
    assert output[-1].startswith("seed ") and "driver" in output[-1]
    assert any("claims term 1" in line for line in output)


def spare_config(world: World) -> RunConfig:
    """Return a configuration with a spare, a restart and enough nodes for failover."""
    nodes = world.chance.randint(3, 8)
    return RunConfig([f"n{node_index}" for node_index in range(nodes)], spares=1, on_node_loss=RESTART, max_restarts=1)


class LoseTheLeader:
    """Loses the leader once, while its driver runs, in one of four ways."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self._env, self._agents = env, agents
        env.checker.on_note = self._note
        env.driver = lambda: (60.0, 0)
        self._done = False

    def _note(self, what: str) -> None:
        if what == "driver" and not self._done:
            self._done = True
            self._env.world.after(self._env.world.between(0.0, 40.0), self._strike)

    def _strike(self) -> None:
        agents = self._agents
        leader, others = agents[0], [agent.node_index for agent in agents[1:]]
        way = self._env.world.chance.choice(["crash", "host", "network", "stop"])
        if way == "crash":
            leader.crash()
        elif way == "host":
            leader.lose_host()
        elif way == "network":
            ways = [pair for node_index in others for pair in ((0, node_index), (node_index, 0))]
            self._env.network.block(ways, 1e6)
        else:
            leader.stop()
            self._env.world.after(120.0, leader.resume)


@pytest.mark.parametrize("seed", range(40))
def test_the_loss_of_the_leader_never_ends_a_run_that_has_a_spare_and_a_restart(seed: int) -> None:
    result = run(seed, draw=spare_config, faults=LoseTheLeader)
    assert (result.broken, result.outcome) == (None, "succeeded")
    assert (result.terms, result.cycles) == (2, 1)


def test_a_large_run_survives_the_loss_of_nodes_and_of_its_leader() -> None:
    figures = simulate_large(LargeRun(nodes=300, spares=12, losses=8, seed=3))
    assert figures["outcome"] == "the driver exited with 0"
    assert (figures["terms"], figures["cycles"]) == (2, 2)


class CountingNodes(list):  # type: ignore[type-arg]
    """The nodes of a state machine; counts the nodes that are iterated over."""

    visits = 0

    def __iter__(self) -> Any:
        self.visits += len(self)
        return super().__iter__()


def nodes_visited(nodes: int) -> int:
    """Return the number of nodes iterated over from the first arrival to the last report of a clean node."""
    protocol = RunStateMachine(RunConfig([f"n{node_index}" for node_index in range(nodes)], spares=1), 0.0)
    protocol.nodes = counting = CountingNodes(protocol.nodes)
    together: list[Event] = [HeadUp(), DriverEnded(0, "exited with 0")]
    for kind in (lambda node_index: Arrived(node_index, f"n{node_index}"), NodeReady, NodeGone):
        for node_index in range(nodes):
            protocol.handle(kind(node_index), 0.0)
        if together:
            protocol.handle(together.pop(0), 0.0)
    assert protocol.state is RunState.SUCCEEDED
    return counting.visits


def test_the_leader_s_work_grows_linearly_with_the_nodes() -> None:
    assert nodes_visited(2000) <= 12 * nodes_visited(200)


def many_spares(world: World) -> RunConfig:
    """Return a configuration in which the leader is the only active node."""
    hosts = [f"n{node_index}" for node_index in range(5)]
    return RunConfig(hosts, ray=False, spares=4, last_call=60.0, on_node_loss=RESTART, max_restarts=2)


class LeaveTheLeaderAtOnce:
    """Crashes one node before it starts; blocks all messages to the leader when the round has closed."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self._env, self._others = env, [agent.node_index for agent in agents[1:]]
        env.driver = lambda: (3.0, 0)
        env.checker.on_note = self._note
        agents[-1].crash()

    def _note(self, what: str) -> None:
        if what == "round" and len(self._env.checker.terms) == 1:
            self._env.network.block([(node_index, 0) for node_index in self._others], 25.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_left_by_its_majority_before_it_could_act_never_acts(seed: int) -> None:
    result = run(seed, draw=many_spares, faults=LeaveTheLeaderAtOnce)
    assert (result.broken, result.outcome, result.terms) == (None, "succeeded", 2)


@pytest.mark.parametrize("seed", range(30, 50))
def test_a_leader_that_is_cut_off_before_its_first_lease_does_not_end_the_run_of_the_others(seed: int) -> None:
    result = run(seed, draw=two_spares, faults=CutTheLeaderOff)
    assert (result.broken, result.outcome, result.terms) == (None, "succeeded", 2)


def spares_under(on_node_loss: str, max_restarts: int) -> Callable[[World], RunConfig]:
    """Return a source of configurations of 2 to 6 nodes with one or two spares, under this policy."""

    def draw(world: World) -> RunConfig:
        nodes = world.chance.randint(2, 6)
        return RunConfig(
            [f"n{node_index}" for node_index in range(nodes)],
            spares=1 if nodes == 2 else world.chance.randint(1, 2),
            on_node_loss=on_node_loss,
            max_restarts=max_restarts,
        )

    return draw


@pytest.mark.parametrize(("on_node_loss", "max_restarts"), [(FAIL, 0), (FAIL, 1), (REPLACE, 0), (RESTART, 1)])
def test_a_first_node_that_fails_before_the_driver_is_replaced_under_every_policy(
    on_node_loss: str, max_restarts: int
) -> None:
    draw = spares_under(on_node_loss, max_restarts)
    for seed in range(20):
        result = run(seed, draw=draw, faults=FirstNodeFails)
        assert (seed, result.broken, result.outcome) == (seed, None, "succeeded")
        assert (result.terms, result.cycles) == (2, 1)


class LoseTheFirstHost:
    """Loses the first host before its agent has started; the launcher reports nothing."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        env.driver = lambda: (3.0, 0)
        agents[0].lose_host()


@pytest.mark.parametrize("seed", range(10))
def test_a_first_node_whose_host_is_lost_before_it_leads_is_replaced(seed: int) -> None:
    result = run(seed, draw=many_spares, faults=LoseTheFirstHost)
    assert (result.broken, result.outcome, result.terms, result.cycles) == (None, "succeeded", 1, 0)


class SuspendTheJob:
    """Suspends the whole job twice while the driver runs."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self._env, self._agents = env, agents
        env.checker.on_note = self._note
        env.driver = lambda: (60.0, 0)

    def _note(self, what: str) -> None:
        if what == "driver":
            world = self._env.world
            seconds = [world.between(*world.chance.choice(SUSPENSIONS_S)) for _ in range(2)]
            world.after(world.between(0.0, 20.0), suspend, self._env, self._agents, seconds[0])
            world.after(seconds[0] + world.between(23.0, 40.0), suspend, self._env, self._agents, seconds[1])


@pytest.mark.parametrize(("on_node_loss", "max_restarts"), [(FAIL, 0), (FAIL, 1), (REPLACE, 1), (RESTART, 1)])
def test_a_suspended_run_goes_on_in_the_same_cycle_under_the_same_leader(on_node_loss: str, max_restarts: int) -> None:
    for seed in range(40):
        result = run(seed, draw=spares_under(on_node_loss, max_restarts), faults=SuspendTheJob)
        assert (seed, result.broken, result.outcome, result.terms, result.cycles) == (seed, None, "succeeded", 1, 0)


# -- with one rule broken ---------------------------------------------------------------------------------------


def test_members_that_do_not_wait_for_the_fence_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "FENCE_S", 0.0)
    assert "lives when" in (first_violation(1000) or "")


def test_half_being_enough_for_a_candidate_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate, "majority", lambda share, roster: 2 * share >= len(roster))
    found = first_violation(1000) or ""
    assert any(text in found for text in ("lives when", "begins with cycle", "records an outcome, and"))  # two leaders


def test_an_agent_that_gives_up_with_exit_code_0_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "INFRASTRUCTURE_FAILED", 0)
    assert "exits with 0" in (first_violation(1000) or "")


class LateAnswers:
    """Delays answers to the leader while the driver runs, then blocks its heartbeats, then delivers the answers."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self._env, self._others = env, [agent.node_index for agent in agents[1:]]
        env.driver = lambda: (30.0, 0)
        env.checker.on_note = self._note

    def _note(self, what: str) -> None:
        network, world = self._env.network, self._env.world
        if what == "driver" and len(self._env.checker.terms) == 1:
            network.block([(node_index, 0) for node_index in self._others], 6.9)  # the lease lasts a little longer
            world.after(3.0, network.block, [(0, node_index) for node_index in self._others], 40.0)


def test_a_lease_from_the_receipt_of_an_answer_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Leader.answered

    def late(self: Leader, node_index: int, sent: float | None, version: int) -> None:
        real(self, node_index, None if sent is None else self._agent.now, version)

    assert [run(seed, draw=many_spares, faults=LateAnswers).broken for seed in range(20)] == [None] * 20
    monkeypatch.setattr(Leader, "answered", late)
    broken = (run(seed, draw=many_spares, faults=LateAnswers).broken for seed in range(20))
    assert "lives when" in next(filter(None, broken))


def test_a_lease_that_is_not_enforced_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.Host, "renew", lambda self, until: None)
    assert "lives" in (first_violation(500) or "")


def test_not_counting_the_dead_for_the_first_lease_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = QuorumLease.__init__

    def forgetful(self: QuorumLease, membership: Membership) -> None:
        real(self, membership)
        self._held = True

    monkeypatch.setattr(QuorumLease, "__init__", forgetful)
    monkeypatch.setattr(QuorumLease, "acquire", lambda self, now: self.settled and self.expires_at() > now)
    results = [run(seed, draw=many_spares, faults=LeaveTheLeaderAtOnce) for seed in range(20)]
    assert any("starts after" in (result.broken or "") for result in results)


def test_supervisors_that_kill_too_late_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "LEASE_KILL_S", 8.0)
    assert first_violation(500) is not None


def test_a_member_whose_lease_runs_from_the_receipt_of_a_heartbeat_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(self: Member, echo: float) -> None:
        if self.membership is not None and not self.leads:
            self.host.renew(self.now + LEASE_S)

    monkeypatch.setattr(member.Member, "_renew", late)
    assert "silent" in (first_violation(1000) or "")
