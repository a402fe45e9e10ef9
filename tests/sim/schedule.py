"""One schedule: a small cluster, drawn by its seed, with faults; and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from muster.lifecycle.config import FAIL, REPLACE, RESTART, RunConfig
from muster.lifecycle.services import ANY, HEAD, ServicePlan
from tests.sim.agent import Surroundings
from tests.sim.faults import Faults
from tests.sim.follower import Heir
from tests.sim.host import Host
from tests.sim.invariants import Broken, Watch, judge_end
from tests.sim.world import World

MOST_NODES = 8
LIVENESS_S = 900.0  # after the last fault, whatever has to be waited for


@dataclass
class Result:
    """What became of a schedule."""

    seed: int
    broken: str | None
    seconds: float  # virtual
    steps: int
    terms: int
    cycles: int
    outcome: str
    trace: list[str] = field(default_factory=list)


def drawn_plan(world: World) -> RunConfig:
    chance = world.chance
    nodes = chance.choice((2, 3, 3, 4, 5, 5, 6, 7, MOST_NODES))
    return RunConfig(
        [f"n{rank}" for rank in range(nodes)],
        ray=chance.random() < 0.7,
        gather_timeout=40.0,
        start_timeout=20.0,
        spares=chance.randint(0, nodes - 1),
        last_call=chance.choice((1.0, 5.0)),
        on_node_loss=chance.choice((RESTART, RESTART, RESTART, RESTART, RESTART, REPLACE, REPLACE, REPLACE, FAIL)),
        max_restarts=chance.choice((0, 1, 1, 1, 2, 2, 2, 3, 3)),
        restart_on_driver_failure=chance.random() < 0.5,
    )


def with_services(world: World) -> RunConfig:
    """The same with two services, one of them on every node."""
    other = ServicePlan("other", world.chance.choice((HEAD, ANY, 2)), deadline=60.0)
    return replace(drawn_plan(world), services=(ServicePlan("every", deadline=60.0), other))


def run(
    seed: int,
    traced: bool = False,
    draw: Callable[[World], RunConfig] = drawn_plan,
    faults: Callable[[Surroundings, Sequence[Heir], float], object] = Faults,
) -> Result:
    """The same seed always gives the same schedule."""
    world = World(seed, traced)
    plan = draw(world)
    world.say(f"{plan}")
    watch = Watch(plan)
    around = Surroundings(world, plan, watch)
    around.driver = lambda: (world.between(1.0, 90.0), int(world.chance.random() < 0.1))
    agents = [Heir(around, host) for host in _hosts(world, watch)]
    watch.living = len(agents)
    for agent in agents:
        late = world.between(0.0, 3.0) if world.chance.random() < 0.9 else world.between(0.0, 30.0)
        world.after(late, agent.deliver, agent.boot)
    until = world.between(5.0, 120.0)
    faults(around, agents, until)
    broken = None
    try:
        world.run(until + LIVENESS_S, lambda: watch.living <= 0)
        judge_end(watch, agents, world.now)
    except Broken as error:
        broken = str(error)
        world.say(f"BROKEN: {broken}")
    outcome = watch.outcomes[max(watch.outcomes)].state if watch.outcomes else "left"
    return Result(seed, broken, world.now, world.steps, len(watch.terms), watch.cycles, outcome, world.trace or [])


def _hosts(world: World, watch: Watch) -> list[Host]:
    for rank in range(watch.plan.nodes):
        host = Host(world, rank)
        host.on_start = watch.started
        watch.hosts.append(host)
    return watch.hosts
