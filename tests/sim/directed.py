"""Directed schedules that several tests use: a configuration and the faults that strike at one moment of its run."""

from __future__ import annotations

from collections.abc import Sequence

from muster.lifecycle.config import RESTART, RunConfig
from tests.sim.agent import Environment
from tests.sim.follower import Follower
from tests.sim.world import World


def two_spares(world: World) -> RunConfig:
    hosts = [f"n{node_index}" for node_index in range(6)]
    return RunConfig(hosts, ray=True, spares=2, on_node_loss=RESTART, max_restarts=2)


class CutTheLeaderOff:
    """Blocks all messages from and to the leader when its round has closed, before it has a lease."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self._env, self._others = env, [agent.node_index for agent in agents[1:]]
        env.driver = lambda: (3.0, 0)
        env.checker.on_note = self._note

    def _note(self, what: str) -> None:
        if what == "round" and len(self._env.checker.terms) == 1:
            ways = [way for other in self._others for way in ((0, other), (other, 0))]
            self._env.network.block(ways, 1e6)


class FirstNodeFails:
    """Lets Ray or the check of the first node fail, soon after it leads or when its round has closed."""

    def __init__(self, env: Environment, agents: Sequence[Follower], until: float) -> None:
        self._env, self._first = env, agents[0]
        self._moment = env.world.chance.choice(("term", "round"))
        env.driver = lambda: (3.0, 0)
        env.checker.on_note = self._note

    def _note(self, what: str) -> None:
        world = self._env.world
        if what == self._moment and len(self._env.checker.terms) == 1:
            world.after(0.05, self._report)

    def _report(self) -> None:
        if self._first.end is None:  # it has not joined itself yet
            self._env.world.after(0.05, self._report)
        else:
            self._first.report(self._env.world.chance.choice(("ray", "health")))
