"""One schedule: a small random cluster with faults, determined by its seed, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from muster.lifecycle.config import FAIL, REPLACE, RESTART, RunConfig
from muster.lifecycle.services import ANY, HEAD, ServicePlan
from tests.sim.agent import Environment
from tests.sim.faults import Faults
from tests.sim.follower import Follower
from tests.sim.host import Host
from tests.sim.invariants import InvariantChecker, InvariantViolated, check_end
from tests.sim.world import World

MAX_NODES = 8
LIVENESS_S = 900.0  # after the last fault, longer than any timeout


@dataclass
class Result:
    """The result of a schedule."""

    seed: int
    broken: str | None
    seconds: float  # virtual
    steps: int
    terms: int
    cycles: int
    outcome: str
    trace: list[str] = field(default_factory=list)


def random_config(world: World) -> RunConfig:
    chance = world.chance
    nodes = chance.choice((2, 3, 3, 4, 5, 5, 6, 7, MAX_NODES))
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


def random_config_with_services(world: World) -> RunConfig:
    """Return such a configuration with two services, one of them on every node."""
    other = ServicePlan("other", world.chance.choice((HEAD, ANY, 2)), deadline=60.0)
    return replace(random_config(world), services=(ServicePlan("every", deadline=60.0), other))


def run(
    seed: int,
    traced: bool = False,
    draw: Callable[[World], RunConfig] = random_config,
    faults: Callable[[Environment, Sequence[Follower], float], object] = Faults,
) -> Result:
    """Run the schedule of this seed; the same seed always gives the same schedule."""
    world = World(seed, traced)
    plan = draw(world)
    world.log(f"{plan}")
    checker = InvariantChecker(plan)
    env = Environment(world, plan, checker)
    env.driver = lambda: (world.between(1.0, 90.0), int(world.chance.random() < 0.1))
    agents = [Follower(env, host) for host in _hosts(world, checker)]
    checker.living = len(agents)
    for agent in agents:
        late = world.between(0.0, 3.0) if world.chance.random() < 0.9 else world.between(0.0, 30.0)
        world.after(late, agent.deliver, agent.boot)
    until = world.between(5.0, 120.0)
    faults(env, agents, until)
    broken = None
    try:
        world.run(until + LIVENESS_S, lambda: checker.living <= 0)
        check_end(checker, agents, world.now)
    except InvariantViolated as error:
        broken = str(error)
        world.log(f"BROKEN: {broken}")
    outcome = checker.outcomes[max(checker.outcomes)].state if checker.outcomes else "left"
    return Result(seed, broken, world.now, world.steps, len(checker.terms), checker.cycles, outcome, world.trace or [])


def _hosts(world: World, checker: InvariantChecker) -> list[Host]:
    for rank in range(checker.plan.nodes):
        host = Host(world, rank)
        host.on_start = checker.started
        checker.hosts.append(host)
    return checker.hosts
