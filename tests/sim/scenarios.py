"""What a run consists of besides its nodes: a gang, health checks, progress, stalls, guests, topology, a requeue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from muster.lifecycle.config import RunConfig
from muster.lifecycle.topology import UNKNOWN_LOCATION, NodeLocation
from tests.sim.network import ConnectionEnd
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.agent import Environment

OTHER_ATTEMPT = -1  # in the greeting of an agent that belongs to the attempt before
MAX_LEADER_CPU_S = 0.02  # for one event


@dataclass(frozen=True)
class Scenario:
    """The parts of a run. The defaults are a plain driver."""

    gang: bool = False  # the driver is one process on each active node
    health: bool = False  # spares are checked
    progress: bool = False  # some drivers report progress
    stalls: bool = False  # some drivers hang
    guests_s: float = 0.0  # longest time that sessions take to end after the driver
    requests: bool = False  # some programs make control requests
    requeue: bool = False  # agents of the attempt before still run, and join
    leader_cpu_s: float = 0.0  # most CPU time of the leader for one event
    domains: tuple[str, ...] = ()  # of the nodes
    late_s: tuple[float, ...] = ()  # how much later than others each node boots

    def delay(self, node_index: int) -> float:
        return self.late_s[node_index] if self.late_s else 0.0

    def location(self, node_index: int) -> NodeLocation:
        if not self.domains:
            return UNKNOWN_LOCATION
        return NodeLocation(self.domains[node_index], f"spine.{self.domains[node_index]}.n{node_index}")


PLAIN = Scenario()


def plain(world: World, plan: RunConfig) -> tuple[RunConfig, Scenario]:
    return plan, PLAIN


def random_scenario(world: World, plan: RunConfig) -> tuple[RunConfig, Scenario]:
    """Draw a scenario, and adapt the configuration to it; a third of the runs are elastic."""
    plan, scenario = _random_parts(world, plan)
    if plan.segment == 1 and world.size_chance.random() < 0.33:
        plan = replace(plan, min_nodes=world.size_chance.randint(1, plan.active_nodes))
        late = (world.size_chance.choice((0.0, 0.0, 0.0, world.size_chance.uniform(20.0, 120.0))) for _ in plan.hosts)
        scenario = replace(scenario, late_s=tuple(late))
    return plan, scenario


def _random_parts(world: World, plan: RunConfig) -> tuple[RunConfig, Scenario]:
    """Draw the parts of a run; a third of the runs are plain."""
    chance = world.chance
    if chance.random() < 0.33:
        return plan, PLAIN
    gang, health, progress, stalls, requeue, topology = (chance.random() < 0.25 for _ in range(6))
    scenario = Scenario(
        gang,
        health,
        progress,
        stalls,
        guests_s=chance.choice((0.0, 0.0, 3.0)),
        requests=world.request_chance.random() < 0.25,
        requeue=requeue,
        leader_cpu_s=chance.choice((0.0, 0.0, MAX_LEADER_CPU_S)),
    )
    if gang:
        plan = replace(plan, gang=True, ray=plan.ray and chance.random() < 0.3)
    if progress:
        plan = replace(plan, no_progress_limit=chance.choice((1, 2)))
    if topology:
        segment = chance.choice((1, 2)) if plan.active_nodes % 2 == 0 else 1
        plan = replace(plan, topology=True, segment=segment)
        scenario = replace(scenario, domains=tuple(f"rack{chance.randrange(2)}" for _ in range(plan.nodes)))
    return plan, scenario


class OtherAttempt:
    """The agent of the attempt before on one host: it joins the leader of this attempt, which must dismiss it."""

    def __init__(self, env: Environment, node_index: int) -> None:
        self._env, self.node_index = env, node_index
        self.alive, self.stopped, self.troubled_at = True, False, 0.0
        env.world.after(env.world.between(0.0, 20.0), self._join)

    def _join(self) -> None:
        files = self._env.files
        if not files.claims:
            self._env.world.after(1.0, self._join)
            return
        term = max(files.claims)
        self._env.network.connect(self, self, files.claims[term][1], term)

    def deliver(self, act: Callable[..., None], *args: Any) -> None:
        if self.alive:
            act(*args)

    def accept(self, end: ConnectionEnd, term: int) -> bool:
        return False

    def on_message(self, end: ConnectionEnd, message: tuple[Any, ...]) -> None:
        if message[0] == "nonce":
            end.send("greeting", self.node_index, None, 0.0, OTHER_ATTEMPT)
        else:
            self.alive = False

    def on_closed(self, end: ConnectionEnd) -> None:
        self.alive = False
