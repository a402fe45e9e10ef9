"""Changes of nodes: they are results of the event, and what is derived from nodes follows them."""

from __future__ import annotations

from muster.lifecycle.config import RunConfig
from muster.lifecycle.node_table import NodeTable
from muster.lifecycle.roles import Role, initial_nodes
from muster.lifecycle.services import ServicePlan, Services
from muster.lifecycle.states import NodeState
from muster.lifecycle.transition import TransitionBuilder

CONFIG = RunConfig(["n0", "n1", "n2"], spares=1)


def table(*plans: ServicePlan) -> tuple[NodeTable, TransitionBuilder, Services]:
    results, services = TransitionBuilder(), Services(plans, CONFIG.active_nodes)
    return NodeTable(CONFIG, initial_nodes(CONFIG), services, results), results, services


def test_a_change_is_published_and_updates_the_sets() -> None:
    nodes, results, _ = table()
    nodes.set_state(1, NodeState.ARRIVED)
    assert results.changes == [nodes.nodes[1]] and nodes.sets.members == {1}


def test_a_transition_that_is_not_allowed_changes_nothing() -> None:
    nodes, results, _ = table()
    nodes.set_state(1, NodeState.READY)
    assert (results.changes, nodes.nodes[1].state) == ([], NodeState.EXPECTED)


def test_only_a_real_change_of_a_role_counts() -> None:
    nodes, results, _ = table()
    nodes.set_role(0, Role.ACTIVE, 0)
    nodes.set_role(0, Role.ACTIVE, 0)
    nodes.change_role(nodes.nodes[1].with_role(Role.WAITING, None))
    assert (nodes.role_changes, len(results.changes)) == (1, 1)


def test_active_nodes_are_those_with_a_rank_also_in_one_state() -> None:
    nodes, _, _ = table()
    nodes.set_role(0, Role.ACTIVE, 0)
    nodes.set_role(2, Role.ACTIVE, 1)
    nodes.set_state(2, NodeState.ARRIVED)
    assert [node.node_index for node in nodes.active()] == [0, 2]
    assert [node.node_index for node in nodes.active(NodeState.ARRIVED)] == [2]


def test_services_start_on_a_node_that_has_a_rank_and_is_connected() -> None:
    nodes, _, services = table(ServicePlan("judge", deadline=9.0))
    nodes.set_role(0, Role.ACTIVE, 0)
    assert services.start_on_new_nodes(0.0) == []
    nodes.set_state(0, NodeState.ARRIVED)
    assert [one.node_index for one in services.start_on_new_nodes(0.0)] == [0]


def test_a_node_that_joins_under_a_wrong_name_is_refused() -> None:
    nodes, _, _ = table()
    nodes.set_state(1, NodeState.ARRIVED)
    assert nodes.join_refusal(0, "n0") is None
    assert "n1 is node 1" in (nodes.join_refusal(0, "n1") or "")
