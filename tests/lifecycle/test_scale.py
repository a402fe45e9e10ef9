"""The cost of an event does not grow with the number of nodes.

The work is counted as executed lines of the package, which does not depend on the load of the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import muster.lifecycle
from muster.lifecycle.config import REPLACE, RESTART, RunConfig
from muster.lifecycle.events import Arrived, Event, HeadUp, NodeFailed, NodeLost, NodeReady, ServiceReport, Tick
from muster.lifecycle.roles import Role
from muster.lifecycle.services import ServicePlan, ServiceState
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.topology import NodeLocation

FEW, MANY, EVENTS = 100, 800, 40
PACKAGE = os.path.dirname(muster.lifecycle.__file__)


def lines_executed(work: Callable[[], None]) -> int:
    """Return the number of lines of the package that the work executes; each step of a generator counts."""
    count = 0

    def trace(frame: Any, what: str, arg: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        count += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def feed(machine: RunStateMachine, events: Iterable[Event]) -> None:
    for event in events:
        machine.handle(event, 1.0)


def arrivals(numbers: Iterable[int]) -> list[Event]:
    return [Arrived(n, f"n{n}", NodeLocation(f"d{n // 10}", f"s{n // 40}.l{n // 10}.n{n}")) for n in numbers]


def gathering(nodes: int, **options: Any) -> RunStateMachine:
    machine = RunStateMachine(RunConfig([f"n{n}" for n in range(nodes)], topology=True, **options), 0.0)
    machine.start(0.0)
    feed(machine, arrivals(range(nodes // 2)))
    return machine


def running(nodes: int, policy: str) -> RunStateMachine:
    """Return a run whose driver runs, with spares for all losses."""
    machine = gathering(nodes, spares=EVENTS + 10, on_node_loss=policy, max_restarts=1)
    feed(machine, [*arrivals(range(nodes // 2, nodes)), HeadUp(), *(NodeReady(n) for n in range(nodes))])
    assert machine.driver_running
    return machine


def cost_of_losses(nodes: int, policy: str, lost: Callable[[int], Event]) -> int:
    machine = running(nodes, policy)
    active = [node.node_index for node in machine.nodes if node.rank]  # without the leader
    cost = lines_executed(lambda: feed(machine, [lost(n) for n in active[:EVENTS]]))
    assert machine.outcome is None and len(machine.excluded) == EVENTS
    return cost


def cost_of_arrivals(nodes: int) -> int:
    machine = gathering(nodes)
    return lines_executed(lambda: feed(machine, arrivals(range(nodes // 2, nodes // 2 + EVENTS))))


def cost_of_late_arrivals(nodes: int) -> int:
    """Return the cost of nodes that become spares one by one, since the round has closed."""
    machine = gathering(nodes, spares=EVENTS)
    feed(machine, arrivals(range(nodes // 2, nodes - EVENTS)))
    feed(machine, [Tick()])
    machine.handle(Tick(), 100.0)
    cost = lines_executed(lambda: feed(machine, arrivals(range(nodes - EVENTS, nodes))))
    assert all(node.role is Role.SPARE for node in machine.nodes[-EVENTS:])
    return cost


def cost_of_service_reports(nodes: int) -> int:
    machine = gathering(nodes, ray=False, services=[ServicePlan("judge"), ServicePlan("box")])
    feed(machine, arrivals(range(nodes // 2, nodes)))
    reports = [ServiceReport("judge", n, ServiceState.READY) for n in range(EVENTS)]
    return lines_executed(lambda: feed(machine, [event for report in reports for event in (report, Tick())]))


def cost_of_refusals(nodes: int) -> int:
    """Return the cost of agents that report other names of their hosts than the allocation has."""
    machine = gathering(nodes)
    late = range(nodes // 2, nodes // 2 + EVENTS)
    return lines_executed(
        lambda: [machine.table.join_refusal(n, f"n{n}.cluster") for n in late for _ in range(3)] and None
    )


COSTS: dict[str, Callable[[int], int]] = {
    "replace": lambda nodes: cost_of_losses(nodes, REPLACE, lambda n: NodeLost(n, "its connection ended")),
    "restart": lambda nodes: cost_of_losses(nodes, RESTART, lambda n: NodeLost(n, "its connection ended")),
    "failures": lambda nodes: cost_of_losses(nodes, REPLACE, lambda n: NodeFailed(n, "ray", "Ray exited with 1")),
    "arrivals": cost_of_arrivals,
    "late arrivals": cost_of_late_arrivals,
    "service reports": cost_of_service_reports,
    "refusals": cost_of_refusals,
}


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS.keys())
def test_the_cost_of_an_event_does_not_grow_with_the_number_of_nodes(cost: Callable[[int], int]) -> None:
    few, many = cost(FEW), cost(MANY)
    assert few > 10 * EVENTS  # something was measured
    assert many < 1.2 * few, (few, many)
