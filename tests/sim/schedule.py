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
from tests.sim.scenarios import OtherAttempt, Scenario, plain, random_scenario
from tests.sim.world import World

MAX_NODES = 8
LIVENESS_S = 3000.0  # after the last fault, longer than any timeout and than all suspensions


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
    early: int  # drivers that started before the fences of earlier terms had passed
    trace: list[str] = field(default_factory=list)


def random_config(world: World) -> RunConfig:
    chance = world.chance
    nodes = chance.choice((2, 3, 3, 4, 5, 5, 6, 7, MAX_NODES))
    return RunConfig(
        [f"n{node_index}" for node_index in range(nodes)],
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


def random_config_of_any_kind(world: World) -> RunConfig:
    return random_config_with_services(world) if world.chance.random() < 0.2 else random_config(world)


def run(
    seed: int,
    traced: bool = False,
    draw: Callable[[World], RunConfig] = random_config,
    faults: Callable[[Environment, Sequence[Follower], float], object] = Faults,
    scenario: Callable[[World, RunConfig], tuple[RunConfig, Scenario]] = plain,
) -> Result:
    """Run the schedule of this seed; the same seed always gives the same schedule."""
    world = World(seed, traced)
    plan, parts = scenario(world, draw(world))
    world.log(f"{plan} {parts}")
    checker = InvariantChecker(plan)
    env = Environment(world, plan, checker)
    env.scenario = parts
    env.driver = lambda: (world.between(1.0, 90.0), int(world.chance.random() < 0.1))
    agents = [Follower(env, host) for host in _hosts(world, checker)]
    checker.living = len(agents)
    if parts.requeue:
        for agent in agents[::2]:
            OtherAttempt(env, agent.node_index)
    for agent in agents:
        late = world.between(0.0, 3.0) if world.chance.random() < 0.9 else world.between(0.0, 30.0)
        world.after(late + parts.delay(agent.node_index), agent.deliver, agent.boot)
    until = world.between(5.0, 120.0)
    faults(env, agents, until)
    broken = None
    try:
        world.run(until + LIVENESS_S, lambda: checker.living <= 0)
        check_end(checker, agents, world.now)
    except InvariantViolated as error:
        broken = str(error)
        world.log(f"BROKEN: {broken}")
    outcome = checker.conclusions[max(checker.conclusions)].state if checker.conclusions else "left"
    return Result(
        seed,
        broken,
        world.now,
        world.steps,
        len(checker.terms),
        checker.cycles,
        outcome,
        checker.early,
        world.trace or [],
    )


def run_random(seed: int, traced: bool = False) -> Result:
    """Run a schedule with a random configuration, scenario and faults."""
    return run(seed, traced, random_config_of_any_kind, scenario=random_scenario)


def _hosts(world: World, checker: InvariantChecker) -> list[Host]:
    for node_index in range(checker.plan.nodes):
        host = Host(world, node_index)
        host.on_start, host.on_continue = checker.started, checker.continued
        checker.hosts.append(host)
    return checker.hosts
