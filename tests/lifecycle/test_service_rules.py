"""Services start on new nodes; a failed or late one is the outcome of the run, and is named."""

from __future__ import annotations

from muster.lifecycle.config import RunConfig
from muster.lifecycle.events import ServiceReport, StartServices
from muster.lifecycle.node_table import NodeTable
from muster.lifecycle.roles import Role, initial_nodes
from muster.lifecycle.service_rules import ServiceRules
from muster.lifecycle.services import ServicePlan, Services, ServiceState
from muster.lifecycle.states import NodeState, RunState
from muster.lifecycle.transition import TransitionBuilder

CONFIG = RunConfig(["n0", "n1"], spares=1)


def started() -> tuple[ServiceRules, TransitionBuilder]:
    """Return the rules of a run whose only active node has been told to start two services."""
    results = TransitionBuilder()
    services = Services((ServicePlan("judge", deadline=9.0), ServicePlan("store", deadline=30.0)), 1)
    table = NodeTable(CONFIG, initial_nodes(CONFIG), services, results)
    rules = ServiceRules(CONFIG, services, table, results)
    table.set_role(0, Role.ACTIVE, 0)
    table.set_state(0, NodeState.ARRIVED)
    rules.start(0.0, 2, RunState.STARTING)
    return rules, results


def test_all_services_of_a_node_are_started_by_one_command() -> None:
    _, results = started()
    assert results.commands == [StartServices(0, ("judge", "store"), 2)]


def test_a_ready_service_is_no_outcome_and_a_failed_one_is() -> None:
    rules, results = started()
    assert rules.report(ServiceReport("judge", 0, ServiceState.READY), 1.0) is None
    failed = rules.report(ServiceReport("store", 0, ServiceState.FAILED, "exited with 3"), 1.0)
    assert failed is not None
    assert (failed.end_reason, failed.phase) == ("service store on n0 exited with 3", "service")
    assert results.service_failure is not None and results.service_failure.service == "store"


def test_the_first_service_past_its_deadline_is_the_outcome() -> None:
    rules, _ = started()
    assert rules.check_deadlines(8.0) is None
    late = rules.check_deadlines(9.5)
    assert late is not None and "service judge was not ready on n0 within 9 s" in late.end_reason
