"""Simulation of one large run with losses, and its measurements."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Any

from muster.lifecycle.config import RunConfig
from tests.sim.agent import Environment
from tests.sim.follower import Follower
from tests.sim.host import Host
from tests.sim.invariants import check_end
from tests.sim.meter import Meter
from tests.sim.replay import replay
from tests.sim.world import World

LOSS_EVENTS = ("NodeLost", "lease: died", "lease: run_changed")
ARRIVALS_S = 5.0  # within which all agents start


@dataclass(frozen=True)
class LargeRun:
    """A run to simulate. `leader_losses` of the losses hit the leader of that time."""

    nodes: int
    spares: int
    losses: int
    seed: int
    leader_losses: int = 1
    on_node_loss: str = "replace"
    max_restarts: int = 3
    seconds: float = 120.0  # duration of the driver

    @property
    def plan(self) -> RunConfig:
        hosts = [f"n{node_index}" for node_index in range(self.nodes + self.spares)]
        return RunConfig(hosts, spares=self.spares, on_node_loss=self.on_node_loss, max_restarts=self.max_restarts)


def simulate(large: LargeRun) -> dict[str, Any]:
    """Simulate the run to its end; raise InvariantViolated if an invariant does not hold."""
    began = time.perf_counter(), time.process_time()
    world = World(large.seed)
    meter = Meter(large.plan, world)
    env = Environment(world, large.plan, meter)
    env.network.meter = meter.record_message
    env.driver = lambda: (large.seconds, 0)
    agents = []
    for node_index in range(large.plan.nodes):
        host = Host(world, node_index)
        host.on_start = meter.started
        meter.hosts.append(host)
        agents.append(Follower(env, host))
        world.after(world.between(0.0, ARRIVALS_S), agents[-1].deliver, agents[-1].boot)
    meter.living = len(agents)
    _lose(world, meter, agents, large)
    world.run(36000.0, lambda: meter.living <= 0)
    check_end(meter, agents, world.now)
    return _figures(large, world, meter, time.perf_counter() - began[0], time.process_time() - began[1])


def _lose(world: World, meter: Meter, agents: list[Follower], large: LargeRun) -> None:
    """Lose nodes while drivers run: half of them crash, the others lose their host."""
    chosen = world.chance.sample(range(1, len(agents)), large.losses)
    times = sorted(world.between(0.1, 0.9) * large.seconds for _ in chosen)
    pending = [
        (when, node_index, place < large.leader_losses)
        for place, (when, node_index) in enumerate(zip(times, chosen, strict=True))
    ]

    def strike(node_index: int, leader: bool) -> None:
        agent = agents[meter.terms[max(meter.terms)]] if leader else agents[node_index]
        agent.crash() if world.chance.random() < 0.5 else agent.lose_host()

    def note(what: str) -> None:
        if what == "driver":
            while pending:
                when, node_index, leader = pending.pop()
                world.after(when, strike, node_index, leader)

    meter.on_note = note


def _figures(large: LargeRun, world: World, meter: Meter, wall: float, cpu: float) -> dict[str, Any]:
    cost = replay(meter.recordings)
    nodes, messages, size = large.plan.nodes, sum(meter.messages.values()), sum(meter.bytes.values())
    outcome = meter.conclusions[max(meter.conclusions)] if meter.conclusions else None
    return {
        "nodes": nodes,
        "outcome": outcome.end_reason if outcome else "not recorded",
        "cycles": meter.cycles + 1,
        "terms": len(meter.terms),
        "virtual_s": round(world.now, 1),
        "rounds": [
            {"cycle": cycle, "close_s": round(seconds, 2), "lead_cpu_s": round(spent, 3)}
            for seconds, (cycle, spent) in zip(meter.rounds, cost.rounds, strict=True)
        ],
        "messages_per_node": round(messages / nodes, 1),
        "bytes_per_node": round(size / nodes),
        "messages_per_node_per_s": round(messages / nodes / world.now, 3),
        "lead_cpu_s": round(cost.cpu, 2),
        "lead_cpu_s_by_event": {
            event: f"{spent:.3f} s for {cost.events[event]}"
            for event, spent in sorted(cost.cpu_by_event.items(), key=lambda entry: -entry[1])
        },
        "lead_cpu_s_of_losses": round(sum(cost.cpu_by_event[event] for event in LOSS_EVENTS), 3),
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "steps": world.steps,
    }
