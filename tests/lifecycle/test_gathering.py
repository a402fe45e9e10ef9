"""A job of MIN to MAX nodes begins with those that have arrived; late nodes join while the driver runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.commands import StartServices, StartWorker
from tests.lifecycle.conftest import Run
from tests.lifecycle.four_nodes import DRIVER_TERMINATED, EXCLUDED, HOSTS, SPARE, active, arrived, clean, roles, up

from muster.lifecycle.config import RESTART, RunConfig, TermStart
from muster.lifecycle.end_reasons import LESS_THAN_HALF
from muster.lifecycle.events import Health, NodeFailed, NodeLost, NodeReady, ServiceReport, Tick
from muster.lifecycle.services import ANY, ServicePlan, ServiceState
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState

THREE_TO_FOUR = RunConfig(HOSTS, gather_timeout=100.0, start_timeout=50.0, min_nodes=3)
RESTARTING = replace(THREE_TO_FOUR, on_node_loss=RESTART, max_restarts=2)


def short(config: RunConfig = THREE_TO_FOUR) -> Run:
    """Return a run whose driver has started on three nodes, because n2 had not arrived by the deadline."""
    run = Run(config)
    run.feed(*arrived(0, 1, 3))
    run.now = 100.0
    run.feed(Tick(), *up(0, 0, 1, 3))
    assert run.state is RunState.RUNNING
    return run


def test_all_nodes_are_awaited_until_the_deadline() -> None:
    run = Run(THREE_TO_FOUR)
    run.feed(*arrived(0, 1, 3))
    run.now = 99.0
    run.feed(Tick())
    assert run.state is RunState.GATHERING
    run.feed(*arrived(2))
    assert (run.state, roles(run)) == (RunState.STARTING, active(0, 1, 2, 3))


def test_the_round_closes_at_the_deadline_with_the_nodes_that_have_arrived() -> None:
    assert roles(short()) == [("active", 0), ("active", 1), SPARE, ("active", 2)]


def test_too_few_nodes_at_the_deadline_end_the_run() -> None:
    run = Run(THREE_TO_FOUR)
    run.feed(*arrived(0, 3))
    run.now = 100.0
    run.feed(Tick())
    assert run.protocol.outcome is not None
    assert run.protocol.outcome.end_reason == (
        "n1, n2 did not arrive within 100 s; 2 of the 3 nodes that the job needs are available"
    )


def test_fewer_than_half_of_the_nodes_do_not_begin_if_the_others_could_elect_a_leader() -> None:
    run = Run(replace(RESTARTING, min_nodes=1))
    run.feed(*arrived(0))
    run.now = 100.0
    run.feed(Tick())
    assert run.outcome.end_reason.endswith(f"; {LESS_THAN_HALF}")


def test_a_node_that_cannot_come_is_not_awaited() -> None:
    run = Run(THREE_TO_FOUR)
    run.feed(*arrived(0, 1, 3), NodeFailed(2, "start", "its task ended"))
    assert (run.state, roles(run)[2]) == (RunState.STARTING, EXCLUDED)


def test_a_late_node_joins_the_running_cluster_with_the_rank_that_was_open() -> None:
    run = short()
    assert run.feed(*arrived(2)) == [StartWorker(2)]
    assert roles(run) == [("active", 0), ("active", 1), ("active", 3), ("active", 2)]
    assert run.protocol.deadline == 150.0
    assert run.feed(NodeReady(2)) == []
    assert (run.state, run.protocol.deadline) == (RunState.RUNNING, None)


def test_a_node_that_arrives_while_ray_starts_joins_when_the_driver_runs() -> None:
    run = Run(THREE_TO_FOUR)
    run.feed(*arrived(0, 1, 3))
    run.now = 100.0
    run.feed(Tick(), *arrived(2))
    assert roles(run)[2] == SPARE
    run.feed(*up(0, 0, 1, 3))
    assert (run.state, roles(run)[2]) == (RunState.RUNNING, ("active", 3))


@pytest.mark.parametrize("end", [NodeLost(2, "its connection ended"), NodeFailed(2, "ray", "Ray did not start"), None])
def test_a_late_node_on_which_ray_does_not_start_is_excluded_and_the_driver_continues(end: NodeLost | None) -> None:
    run = short()
    run.feed(*arrived(2))
    run.now = 151.0
    run.feed(end or Tick())  # without a report: Ray is too late
    assert (run.state, roles(run)[2], run.protocol.deadline) == (RunState.RUNNING, EXCLUDED, None)


def test_the_next_late_node_gets_the_rank_of_one_that_failed() -> None:
    run = Run(replace(THREE_TO_FOUR, min_nodes=2))
    run.feed(*arrived(0, 1))
    run.now = 100.0
    run.feed(Tick(), *up(0, 0, 1), *arrived(2), NodeLost(2, "its connection ended"), *arrived(3))
    assert roles(run) == [*active(0, 1), EXCLUDED, ("active", 2)]


def test_the_loss_of_a_late_node_counts_once_ray_is_up_on_it() -> None:
    run = short()
    run.feed(*arrived(2), NodeReady(2), NodeLost(2, "its connection ended"))
    assert run.state is RunState.FINISHING  # --on-node-loss fail


def test_an_unhealthy_late_node_joins_when_it_is_healthy() -> None:
    run = Run(THREE_TO_FOUR)
    run.feed(*arrived(0, 1, 3))
    run.now = 100.0
    run.feed(Tick(), *arrived(2), Health(2, False, "too warm"), *up(0, 0, 1, 3))
    assert (run.state, roles(run)[2]) == (RunState.RUNNING, SPARE)
    assert run.feed(Health(2, True)) == [StartWorker(2)]


def test_a_gang_does_not_grow_and_has_the_late_node_in_its_next_cycle() -> None:
    run = short(replace(RESTARTING, gang=True))
    run.feed(*arrived(2))
    assert roles(run)[2] == SPARE
    run.feed(NodeLost(3, "the agent of n3 is gone"), DRIVER_TERMINATED, *clean(1, 0, 1, 2))
    assert (run.state, roles(run)) == (RunState.STARTING, [*active(0, 1, 2), EXCLUDED])


def test_a_later_round_does_not_wait_for_a_node_that_has_missed_one() -> None:
    run = short(replace(RESTARTING, min_nodes=2))
    run.feed(NodeLost(3, "the agent of n3 is gone"), DRIVER_TERMINATED, *clean(1, 0))
    assert run.state is RunState.GATHERING  # n1 is being cleaned
    run.feed(*clean(1, 1))
    assert (run.state, roles(run)) == (RunState.STARTING, [*active(0, 1), SPARE, EXCLUDED])


def test_the_next_leader_does_not_wait_for_a_node_that_was_in_no_roster() -> None:
    config = replace(RESTARTING, min_nodes=2)
    start = TermStart(1, 1, 1, frozenset({0}), "n0 is gone", 0, roster=frozenset({0, 1, 3}))
    machine = RunStateMachine(config, 0.0, start)
    machine.start(0.0)
    for event in arrived(3, 1):
        machine.handle(event, 1.0)
    assert machine.state is RunState.STARTING


def test_a_loss_before_the_driver_begins_a_cycle_with_fewer_nodes_within_the_budget() -> None:
    run = Run(THREE_TO_FOUR)
    run.feed(*arrived(0, 1, 2, 3), NodeFailed(2, "ray", "Ray did not start"))
    assert run.outcome.end_reason == "Ray did not start; no restart is allowed (--max-restarts 0)"
    run = Run(replace(THREE_TO_FOUR, max_restarts=1))
    run.feed(*arrived(0, 1, 2, 3), NodeFailed(2, "ray", "Ray did not start"), *clean(1, 0, 1, 3))
    assert (run.state, run.protocol.cycle) == (RunState.STARTING, 1)
    assert roles(run) == [("active", 0), ("active", 1), EXCLUDED, ("active", 2)]


def test_services_are_placed_on_the_nodes_of_the_round_and_the_one_on_all_nodes_on_late_ones_too() -> None:
    run = Run(replace(THREE_TO_FOUR, services=(ServicePlan("every"), ServicePlan("one", ANY))))
    assert StartServices(0, ("every",)) not in run.feed(*arrived(0, 1, 3))
    run.now = 100.0
    started = [command for command in run.feed(Tick()) if isinstance(command, StartServices)]
    assert started == [StartServices(0, ("every",)), StartServices(1, ("every",)), StartServices(3, ("every", "one"))]
    ready = [ServiceReport("every", node_index, ServiceState.READY) for node_index in (0, 1, 3)]
    run.feed(*up(0, 0, 1, 3), *ready)
    assert run.state is RunState.STARTING
    run.feed(ServiceReport("one", 3, ServiceState.READY))
    assert run.state is RunState.RUNNING
    assert StartServices(2, ("every",)) in run.feed(*arrived(2))
    assert (run.protocol.services.wanted("every"), run.protocol.services.wanted("one")) == (4, 1)
