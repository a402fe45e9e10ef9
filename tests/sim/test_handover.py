"""After a certified end of the leader the next driver starts early, but never while an old process runs.

Each test with one rule broken shows that the schedules find it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pytest

from muster.election import leader_lease
from muster.election.leader_lease import LeaderLease
from muster.election.timing import FENCE_S
from muster.lifecycle.config import RESTART, RunConfig
from tests.sim.agent import Agent, Environment
from tests.sim.faults import Faults
from tests.sim.files import RunDirectory
from tests.sim.follower import Follower
from tests.sim.host import DRIVER, Host
from tests.sim.schedule import Result, run
from tests.sim.world import World

SEEDS = range(20)
MANY_SEEDS = range(60)  # for a rule whose violation only some schedules show


def config(world: World) -> RunConfig:
    """Return a configuration that can lose two leaders."""
    nodes = world.chance.randint(5, 8)
    hosts = [f"n{node_index}" for node_index in range(nodes)]
    return RunConfig(
        hosts, gather_timeout=40.0, start_timeout=20.0, spares=3, last_call=1.0, on_node_loss=RESTART, max_restarts=2
    )


class LoseLeaders:
    """Calls `strike` with the leader some time after the start of each driver; records when drivers start."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self.env, self.agents, self.world = env, agents, env.world
        self.lost_at: list[float] = []
        self.mended_after: list[float] = []
        env.checker.on_note = self._note
        env.driver = lambda: (60.0, 0)

    def _note(self, what: str) -> None:
        if what == "driver":
            if self.lost_at:
                self.mended_after.append(self.world.now - self.lost_at[-1])
                mended.append(self.mended_after[-1])
            self.world.after(self.world.between(0.0, 10.0), self._lose)

    def _lose(self) -> None:
        leaders = [agent for agent in self.agents if agent.alive and agent.leader and not agent.leader.over]
        if leaders:
            losses, self.lost_at = len(self.lost_at), [*self.lost_at, self.world.now]
            self.strike(leaders[-1], losses)

    def strike(self, leader: Follower, losses: int) -> None:
        raise NotImplementedError

    def cut(self, node_index: int, seconds: float = 60.0) -> None:
        """Cut a node off from all others; it does not see that any connection has ended."""
        others = [agent.node_index for agent in self.agents if agent.node_index != node_index]
        self.env.network.block([way for other in others for way in ((node_index, other), (other, node_index))], seconds)


mended: list[float] = []  # seconds from the loss of a leader to the next driver, of the last test
complete: list[bool] = []  # whether all nodes had joined the leader that was lost, of the last test


@pytest.fixture(autouse=True)
def guardians_and_supervisors_are_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every agent's end is certified as soon as its processes have ended, within two seconds."""

    def orphan(self: Host) -> None:
        for process in self.processes:
            self.after(self._world.between(0.5, 2.0), self._kill, [process])

    def guard(self: Agent) -> None:
        self.host.guard(lambda: self.env.files.certify(self.node_index))

    monkeypatch.setattr(Host, "orphan", orphan)
    monkeypatch.setattr(Agent, "_guard", guard)
    mended.clear()
    complete.clear()


def violations(results: Sequence[Result]) -> list[str]:
    return [f"seed {result.seed}: {result.broken}" for result in results if result.broken]


class CrashOnce(LoseLeaders):
    """The leader's process is killed once."""

    def strike(self, leader: Follower, losses: int) -> None:
        if not losses:
            complete.append(all(agent.membership is not None for agent in self.agents))
            leader.crash()


def test_the_driver_runs_again_before_the_fence_has_passed_when_all_nodes_have_joined() -> None:
    results = [run(seed, draw=config, faults=CrashOnce) for seed in SEEDS]
    assert violations(results) == []
    assert {(result.outcome, result.terms) for result in results} == {("succeeded", 2)}
    prompt = [seconds for seconds, all_joined in zip(mended, complete, strict=True) if all_joined]
    assert len(prompt) > len(SEEDS) / 4 and sum(result.early for result in results) > len(SEEDS) / 2
    joined = [(result, seconds) for result, seconds, every in zip(results, mended, complete, strict=True) if every]
    in_time = FENCE_S - 3.0  # the fence counts from the last answer, which may be a heartbeat older than the loss
    assert {result.early for result, seconds in joined if seconds < in_time} == {1}
    assert statistics.median(prompt) < in_time


class CrashWithACutOffMember(CrashOnce):
    """A member that works is cut off just before: it runs its processes until its lease ends."""

    def strike(self, leader: Follower, losses: int) -> None:
        if not losses:
            working = [agent for agent in self.agents if agent is not leader and agent.host.processes]
            self.cut(self.world.chance.choice(working).node_index)
            self.world.after(self.world.between(0.0, 0.3), super().strike, leader, losses)


def test_a_member_that_is_cut_off_delays_the_driver_until_the_fence_has_passed() -> None:
    results = [run(seed, draw=config, faults=CrashWithACutOffMember) for seed in SEEDS]
    assert violations(results) == []
    assert {result.early for result in results} == {0} and {result.outcome for result in results} == {"succeeded"}


def test_a_driver_that_does_not_wait_for_absent_nodes_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderLease, "_handed_over", lambda self, now: True)
    found = violations([run(seed, draw=config, faults=CrashWithACutOffMember) for seed in MANY_SEEDS])
    assert any("starts early" in text for text in found)


def test_a_guardian_that_dies_with_its_agent_leaves_the_fence_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "_guard", lambda self: None)
    results = [run(seed, draw=config, faults=CrashOnce) for seed in SEEDS]
    assert violations(results) == []
    assert {(result.outcome, result.early) for result in results} == {("succeeded", 0)}


class StopOnce(LoseLeaders):
    """The leader's process is stopped, not dead, and continues after the next leader has begun."""

    def strike(self, leader: Follower, losses: int) -> None:
        if not losses:
            leader.stop()
            self.world.after(30.0, leader.resume)


def test_a_stopped_leader_is_not_certified_and_must_be_fenced() -> None:
    results = [run(seed, draw=config, faults=StopOnce) for seed in SEEDS]
    assert violations(results) == []
    assert {(result.outcome, result.terms, result.early) for result in results} == {("succeeded", 2, 0)}


def test_a_certificate_written_before_all_processes_have_ended_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def orphan(self: Host) -> None:
        for process in self.processes:
            self.after(8.0, self._kill, [process])

    monkeypatch.setattr(Host, "orphan", orphan)
    assert violations([run(seed, draw=config, faults=CrashOnce) for seed in SEEDS]) == []
    monkeypatch.setattr(Agent, "_guard", lambda self: self.env.files.certify(self.node_index))
    found = violations([run(seed, draw=config, faults=CrashOnce) for seed in SEEDS])
    assert any("lives when" in text for text in found)


class CrashThenBreak(LoseLeaders):
    """The first leader is killed. The second one is stopped, and its connections end: its driver goes on."""

    def strike(self, leader: Follower, losses: int) -> None:
        if not losses:
            leader.crash()
        elif losses == 1:
            leader.stop()
            self.world.after(60.0, leader.resume)
            for agent in self.agents:
                if agent is not leader:
                    self.env.network.break_between(leader.node_index, agent.node_index)


def test_a_certificate_of_an_earlier_term_does_not_lift_the_fence_of_a_later_one() -> None:
    results = [run(seed, draw=config, faults=CrashThenBreak) for seed in SEEDS]
    assert violations(results) == []
    assert {result.terms for result in results} == {3} and {result.early for result in results} <= {0, 1}


def test_a_certificate_that_counts_for_every_term_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunDirectory, "seen_gone", lambda self, host: frozenset(self.claims if self.gone else ()))
    found = violations([run(seed, draw=config, faults=CrashThenBreak) for seed in SEEDS])
    assert any(f"the {DRIVER} of" in text and "lives when" in text for text in found)


class CrashTwice(LoseLeaders):
    """Two leaders are killed; the second before it has run a driver, with a member cut off since the first."""

    def strike(self, leader: Follower, losses: int) -> None:
        if losses:
            return
        working = [agent for agent in self.agents if agent is not leader and agent.host.processes]
        self.cut(self.world.chance.choice(working).node_index)
        leader.crash()
        self.env.checker.on_note = self._next_term

    def _next_term(self, what: str) -> None:
        if what == "term":
            self.env.checker.on_note = self._note
            second = self.agents[self.env.checker.terms[max(self.env.checker.terms)]]
            self.world.after(self.world.between(0.0, 1.0), second.crash)


def test_a_fence_that_was_lifted_still_holds_back_the_driver_of_the_term_after_next() -> None:
    results = [run(seed, draw=config, faults=CrashTwice) for seed in SEEDS]
    assert violations(results) == []
    assert {result.outcome for result in results} <= {"succeeded", "left"}  # left: no majority of the roster was left
    assert sum(result.terms == 3 for result in results) > len(SEEDS) / 2


def test_a_leader_that_does_not_wait_from_the_start_of_its_term_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_lease, "FENCE_S", 0.0)
    found = violations([run(seed, draw=config, faults=CrashWithACutOffMember) for seed in MANY_SEEDS])
    assert any("lives when" in text for text in found)


class CrashAmongFaults(Faults):
    """Random faults, and the leader's process is killed while its driver runs."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        super().__init__(env, agents, until)
        self._faults = env.checker.on_note
        env.checker.on_note = self._also

    def _also(self, what: str) -> None:
        self._faults(what)
        if what == "driver":
            self._world.after(self._world.between(0.0, 20.0), self._crash)

    def _crash(self) -> None:
        leaders = [agent for agent in self._agents if agent.alive and agent.leader and not agent.leader.over]
        if leaders and self._world.now < self._until:
            leaders[-1].crash()


def test_killed_leaders_among_random_faults_break_no_invariant() -> None:
    results = [run(seed, draw=config, faults=CrashAmongFaults) for seed in range(150)]
    assert violations(results) == []
    assert sum(result.early for result in results) > 15
