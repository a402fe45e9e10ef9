"""Discovery of the nodes of a real Ray cluster, and the check of its GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.placement.conftest import eventually

if TYPE_CHECKING:
    from muster.placement.planning.cluster import Node

ray = pytest.importorskip("ray")

from muster.placement.planning.planner import FREE
from muster.placement.runtime import nodes
from muster.placement.runtime.nodes import check_total_gpu_capacity, discover_nodes


@pytest.mark.ray
def test_discovery_finds_total_and_free_resources_of_nodes(group: Any, head: Node, worker: Node) -> None:
    def taken() -> bool:
        return [node.available.get("GPU", 0) for node in discover_nodes().nodes if not node.head] == [2]

    eventually("Ray to know what the group took", taken)
    assert (head.total["GPU"], worker.total["GPU"]) == (2, 4)
    assert worker.label("rack") == "b" and head.label("ray.io/node-id") == head.id


@pytest.mark.ray
def test_capacity_is_free_or_total_and_may_exclude_the_head(group: Any) -> None:
    check_total_gpu_capacity(6)
    with pytest.raises(RuntimeError, match="7 GPUs are required; 2 nodes have 6 total"):
        check_total_gpu_capacity(7)
    with pytest.raises(RuntimeError, match="5 GPUs are required; the 1 nodes besides the head have 4 total"):
        check_total_gpu_capacity(5, ignore_head_node=True)
    with pytest.raises(RuntimeError, match=r"besides the head have \d free"):
        check_total_gpu_capacity(5, ignore_head_node=True, against=FREE)


# -- without a cluster ----------------------------------------------------------------------------------------------


def record(id: str, alive: bool = True, **fields: Any) -> dict[str, Any]:
    return {"NodeID": id, "Alive": alive, "Resources": {"GPU": 4.0}, "NodeManagerHostname": f"host-{id}", **fields}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand in for Ray's node table; only a's resources are known to be free."""
    records = [record("a", Resources={"GPU": 4.0, nodes.HEAD_RESOURCE: 1.0}), record("dead", False), record("b")]
    monkeypatch.setattr(nodes.ray, "nodes", lambda: records)
    monkeypatch.setattr(nodes, "available_resources_per_node", lambda: {"a": {"GPU": 1.0}})
    return records


def test_dead_nodes_are_left_out_and_nothing_is_free_where_ray_reports_nothing(given: list[dict[str, Any]]) -> None:
    assert [(node.id, node.available) for node in discover_nodes().nodes] == [("a", {"GPU": 1.0}), ("b", {})]


def test_the_head_is_the_node_with_ray_s_resource_unless_it_is_given(given: list[dict[str, Any]]) -> None:
    assert [node.id for node in discover_nodes().nodes if node.head] == ["a"]
    assert [node.id for node in discover_nodes("b").nodes if node.head] == ["b"]


def test_a_node_has_the_name_that_muster_gave_it_and_otherwise_its_host_s(given: list[dict[str, Any]]) -> None:
    given[2]["Labels"] = {"muster.io/host": "n2", "rack": "x"}
    assert [node.name for node in discover_nodes().nodes] == ["host-a", "n2"]
    assert discover_nodes().nodes[1].labels["rack"] == "x"


def test_capacity_is_checked_against_free_or_total_and_nothing_else(given: list[dict[str, Any]]) -> None:
    check_total_gpu_capacity(1, against=FREE)
    with pytest.raises(RuntimeError, match="2 GPUs are required; 2 nodes have 1 free"):
        check_total_gpu_capacity(2, against=FREE)
    with pytest.raises(ValueError, match="capacity is 'free' or 'total', not 'all'"):
        check_total_gpu_capacity(1, against="all")


def test_the_environment_may_exclude_the_head_from_the_capacity(
    given: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_total_gpu_capacity(8)
    monkeypatch.setenv("CURATOR_IGNORE_RAY_HEAD_NODE", "1")
    with pytest.raises(RuntimeError, match="the 1 nodes besides the head have 4 total"):
        check_total_gpu_capacity(8)
    check_total_gpu_capacity(8, ignore_head_node=False)
