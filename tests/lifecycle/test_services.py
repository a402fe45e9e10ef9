"""Services in a run: their instances, what the driver waits for, and the effect of a failure or a lost node."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lifecycle.commands import BeginCycle, StartDriver, StartHead, StartServices, StartWorker, StopNode
from tests.lifecycle.conftest import HOSTS, Run, arrived

from muster.lifecycle.events import (
    DriverEnded,
    HeadUp,
    NodeGone,
    NodeLost,
    NodeReady,
    ServiceReport,
    StopRequested,
    Tick,
)
from muster.lifecycle.services import PlannedInstance, ServicePlan, Services, ServiceState
from muster.lifecycle.state_machine import RunConfig
from muster.lifecycle.states import RunState

JUDGE = ServicePlan("judge", deadline=30.0)
FAILED, READY, RESTARTING = ServiceState.FAILED, ServiceState.READY, ServiceState.RESTARTING
STARTING, ENDED = ServiceState.STARTING, ServiceState.ENDED


def run_with(*services: ServicePlan, **more: Any) -> Run:
    plan = {"ray": False, "gather_timeout": 100.0, "start_timeout": 50.0, **more}
    return Run(RunConfig(HOSTS, services=services, **plan))


def is_ready(*node_indexes: int, service: str = "judge", cycle: int = 0) -> list[ServiceReport]:
    return [ServiceReport(service, node_index, READY, cycle=cycle) for node_index in node_indexes]


def started(commands: list[Any]) -> dict[int, tuple[str, ...]]:
    return {command.node_index: command.services for command in commands if isinstance(command, StartServices)}


# -- instances ----------------------------------------------------------------------------------------------------


def test_a_node_starts_its_services_as_it_arrives_and_does_not_wait_for_the_head() -> None:
    run = run_with(JUDGE, ray=True)
    assert run.feed(*arrived(1)) == [StartServices(1, ("judge",))]
    assert run.feed(*arrived(0)) == [StartHead(), StartServices(0, ("judge",))]
    assert run.feed(HeadUp()) == [StartWorker(1)]


@pytest.mark.parametrize(
    ("scope", "node_indexes"), [("all", [0, 1, 2]), ("head", [0]), ("any", [2]), (1, [2]), (2, [1, 2]), (9, [0, 1, 2])]
)
def test_the_scope_determines_which_ranks_have_an_instance(scope: str | int, node_indexes: list[int]) -> None:
    run = run_with(ServicePlan("judge", scope))
    assert sorted(started(run.feed(*arrived(0, 1, 2)))) == node_indexes
    assert run.state is RunState.STARTING
    assert run.feed(*is_ready(*node_indexes)) == [StartDriver()]


@pytest.mark.parametrize(
    ("scope", "node_indexes"), [("all", [1, 2]), ("head", [1]), ("any", [2]), (1, [2]), (2, [1, 2])]
)
def test_the_scope_may_apply_to_a_group_of_nodes(scope: str | int, node_indexes: list[int]) -> None:
    run = run_with(ServicePlan("judge", scope, ranks=range(1, 3)))
    assert sorted(started(run.feed(*arrived(0, 1, 2)))) == node_indexes
    assert run.feed(*is_ready(*node_indexes)) == [StartDriver()]


def test_with_spares_services_start_when_the_round_has_closed_and_not_on_spares() -> None:
    run = run_with(JUDGE, spares=1)
    assert started(run.feed(*arrived(0, 1))) == {0: ("judge",)}
    assert started(run.feed(*arrived(2))) == {1: ("judge",)}


def test_a_run_without_services_knows_nothing_of_them() -> None:
    run = run_with()
    assert run.feed(*arrived(0, 1, 2)) == [StartDriver()]


# -- the gate -----------------------------------------------------------------------------------------------------


def test_the_driver_waits_for_ray_and_for_every_gated_instance() -> None:
    run = run_with(JUDGE, ray=True)
    run.feed(*arrived(0, 1, 2), HeadUp(), NodeReady(0), NodeReady(1), *is_ready(0, 1, 2))
    assert run.state is RunState.STARTING
    assert run.feed(NodeReady(2)) == [StartDriver()]


def test_one_that_is_restarting_closes_the_gate_again() -> None:
    run = run_with(JUDGE)
    run.feed(*arrived(0, 1, 2), *is_ready(0, 1), ServiceReport("judge", 1, RESTARTING, "exited with 1"))
    assert run.feed(*is_ready(2)) == []
    assert run.feed(*is_ready(1)) == [StartDriver()]


def test_the_driver_does_not_wait_for_a_service_without_a_gate() -> None:
    run = run_with(ServicePlan("judge", gate=False))
    assert StartDriver() in run.feed(*arrived(0, 1, 2))


def test_a_gated_one_may_take_longer_than_ray() -> None:
    run = run_with(ServicePlan("judge", deadline=500.0))
    run.feed(*arrived(0, 1, 2))
    run.feed(Tick(), at=499.0)
    assert run.feed(*is_ready(0, 1, 2)) == [StartDriver()]


# -- failures -----------------------------------------------------------------------------------------------------


def test_one_that_fails_ends_the_run_by_its_name() -> None:
    run = run_with(JUDGE)
    commands = run.feed(*arrived(0, 1, 2), ServiceReport("judge", 1, FAILED, "exited with 3 before it was ready"))
    assert [command for command in commands if isinstance(command, StopNode)] == [
        StopNode(node_index) for node_index in range(3)
    ]
    outcome = run.outcome
    assert outcome.end_reason == "service judge on n1 exited with 3 before it was ready"
    assert (outcome.exit_code, outcome.node, outcome.node_index, outcome.phase) == (125, "n1", 1, "service")


def test_one_that_fails_while_others_still_arrive_ends_the_run_too() -> None:
    run = run_with(JUDGE)
    run.feed(*arrived(0), ServiceReport("judge", 0, FAILED, "exited with 3"))
    assert run.state is RunState.FINISHING


def test_of_several_deadlines_the_shortest_is_reported_first() -> None:
    run = run_with(ServicePlan("slow", deadline=40.0), ServicePlan("quick", deadline=20.0, scope="head"))
    run.feed(*arrived(0, 1, 2))
    run.feed(ServiceReport("quick", 0, STARTING, "connection refused"))
    (transition,) = run.transitions(Tick(), at=60.0)
    assert run.outcome.end_reason == (
        "service quick was not ready on n0 within 20 s (its deadline): connection refused"
    )
    assert transition.service_failure is not None and transition.service_failure.service == "quick"
    assert [(change.service, change.state) for change in transition.service_changes] == [("quick", FAILED)]


def test_a_deadline_is_counted_from_the_start_of_its_own_instance() -> None:
    run = run_with(JUDGE)
    run.feed(*arrived(0))
    run.feed(*arrived(1, 2), at=20.0)
    run.feed(*is_ready(0))
    run.feed(Tick(), at=45.0)
    assert run.protocol.outcome is None
    run.feed(Tick(), at=50.0)
    assert "n1 within 30 s" in run.outcome.end_reason


def test_a_restarted_one_has_its_deadline_anew() -> None:
    run = run_with(JUDGE)
    run.feed(*arrived(0, 1, 2), *is_ready(0, 1, 2))
    run.feed(Tick(), at=1000.0)
    run.feed(ServiceReport("judge", 2, RESTARTING, "exited with 1"))
    run.feed(Tick(), at=1029.0)
    assert run.state is RunState.RUNNING
    run.feed(Tick(), at=1030.0)
    assert "service judge was not ready on n2" in run.outcome.end_reason


def test_the_driver_does_not_wait_for_a_service_that_was_ready_and_ended() -> None:
    run = run_with(JUDGE)
    run.feed(*arrived(0, 1, 2), *is_ready(0), ServiceReport("judge", 0, ENDED, "exited with 0"))
    assert run.feed(*is_ready(1, 2)) == [StartDriver()]


def test_a_service_that_ended_well_is_not_missed() -> None:
    run = run_with(JUDGE)
    run.feed(*arrived(0, 1, 2), *is_ready(0, 1, 2), ServiceReport("judge", 1, ENDED, "exited with 0"))
    run.feed(Tick(), at=5000.0)
    assert run.state is RunState.RUNNING


def test_a_failure_while_the_run_ends_changes_nothing() -> None:
    run = run_with(JUDGE)
    run.feed(*arrived(0, 1, 2), *is_ready(0, 1, 2), StopRequested("stopped by alice", 15, 5.0))
    run.feed(ServiceReport("judge", 0, FAILED, "exited with 143"))
    assert run.outcome.end_reason == "stopped by alice"


# -- losses -------------------------------------------------------------------------------------------------------


def test_a_spare_that_takes_a_rank_takes_its_services_too() -> None:
    judge, store = JUDGE, ServicePlan("store", "any")
    run = run_with(judge, store, spares=1, on_node_loss="replace")
    run.feed(*arrived(0, 1, 2), *is_ready(0, 1), *is_ready(1, service="store"))
    assert run.state is RunState.RUNNING
    assert StartServices(2, ("judge", "store")) in run.feed(NodeLost(1, "lost"))
    found = run.protocol.services.instances_of("judge")
    assert [(instance.node_index, instance.state) for instance in found] == [(0, READY), (2, STARTING)]
    assert run.feed(*is_ready(2), *is_ready(2, service="store")) == []


def test_before_the_driver_the_gate_waits_for_the_spare_s_instance() -> None:
    run = run_with(JUDGE, spares=1, on_node_loss="replace")
    run.feed(*arrived(0, 1, 2), *is_ready(1), NodeLost(1, "lost"), *is_ready(0))
    assert run.state is RunState.STARTING
    assert run.feed(*is_ready(2)) == [StartDriver()]


def test_a_new_cycle_begins_without_instances_and_starts_them_again() -> None:
    run = run_with(JUDGE, spares=1, on_node_loss="restart", max_restarts=1)
    run.feed(*arrived(0, 1, 2), *is_ready(0, 1), NodeLost(1, "lost"))
    assert run.state is RunState.RESTARTING
    run.feed(ServiceReport("judge", 0, FAILED, "the other node is gone"))  # may be a consequence of the loss
    assert BeginCycle() in run.feed(DriverEnded(143, "was ended", 0))
    assert run.protocol.services.instances == {}
    assert started(run.feed(NodeGone(0, 1), NodeGone(2, 1))) == {0: ("judge",), 2: ("judge",)}
    assert run.feed(*is_ready(0, 2)) == []  # of the previous cycle
    assert run.feed(*is_ready(0, 2, cycle=1)) == [StartDriver()]


def test_a_report_about_an_unknown_instance_changes_nothing() -> None:
    run = run_with(ServicePlan("judge", "head"))
    run.feed(*arrived(0, 1, 2))
    assert run.feed(*is_ready(2)) == []
    assert run.feed(ServiceReport("judge", 1, FAILED, "?")) == []


def test_each_change_of_an_instance_is_returned_once() -> None:
    services = Services([JUDGE], 1)
    services.set_rank(4, 0)
    assert services.start_on_new_nodes(0.0) == [PlannedInstance("judge", 4, 0, STARTING, 30.0)]
    assert services.start_on_new_nodes(0.0) == []
    assert services.report("judge", 4, READY, "", 1.0) == PlannedInstance("judge", 4, 0, READY, 31.0)
    assert services.report("judge", 4, READY, "", 2.0) is None
    version = services.version
    services.set_rank(4, None)
    assert services.version > version and services.instances_of("judge") == []
