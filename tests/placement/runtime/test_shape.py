"""The bundle shape of one replica, as drivers expect it that build placement groups one by one."""

from __future__ import annotations

from typing import Any

import pytest

from muster.placement.planning.cluster import Cluster, Node
from muster.placement.runtime.shape import (
    IGNORE_HEAD_VARIABLE,
    ReplicaBundleSpec,
    plan_replica_bundle_shape,
    shape_for,
)


def nodes(*gpus: int, head: int | None = None) -> list[dict[str, Any]]:
    return [{"node_id": f"n{n}", "num_gpus": count, "is_head": n == head} for n, count in enumerate(gpus)]


@pytest.mark.parametrize("topology", [nodes(8), nodes(5, 8), nodes(4, 4)])
def test_a_size_that_fits_one_node_is_one_bundle_there(topology: list[dict[str, Any]]) -> None:
    spec = plan_replica_bundle_shape(4, _topology=topology)
    assert spec == ReplicaBundleSpec([{"CPU": 1, "GPU": 4}], "STRICT_PACK", 1, 4, None)
    assert not spec.is_multi_node and spec.total_gpus == 4


@pytest.mark.parametrize(("size", "topology", "count"), [(8, nodes(4, 4), 2), (12, nodes(4, 4, 4), 3)])
def test_a_larger_one_is_split_evenly_over_the_fewest_nodes(
    size: int, topology: list[dict[str, Any]], count: int
) -> None:
    spec = plan_replica_bundle_shape(size, _topology=topology)
    assert spec.bundles == [{"CPU": 1, "GPU": 4}] * count and spec.strategy == "STRICT_SPREAD"
    assert spec.is_multi_node and spec.nnodes == count and spec.per_node_gpus == 4 and spec.total_gpus == size


@pytest.mark.parametrize(
    ("size", "topology", "message"),
    [
        (4, nodes(1, 3), "even split.*2 nodes have 3, 1"),
        (6, nodes(2, 2), "even split"),
        (1, [], "No GPU nodes"),
        (1, nodes(0), "No GPU nodes: none of the cluster's 1 nodes"),
    ],
)
def test_an_impossible_size_is_refused_with_the_reason(size: int, topology: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        plan_replica_bundle_shape(size, _topology=topology)


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_a_mistake(size: int) -> None:
    with pytest.raises(ValueError, match=f"tp_size must be >= 1, got {size}"):
        plan_replica_bundle_shape(size, _topology=nodes(8))


def test_without_the_head_every_bundle_has_a_selector_and_a_head_alone_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert plan_replica_bundle_shape(4, _topology=nodes(16, 4, head=0)).bundle_label_selector is None
    monkeypatch.setenv(IGNORE_HEAD_VARIABLE, "1")
    spec = plan_replica_bundle_shape(8, _topology=nodes(16, 4, 4, head=0))
    assert spec.nnodes == 2 and spec.bundle_label_selector == [{"ray.io/node-type": "worker"}] * 2
    with pytest.raises(RuntimeError, match=IGNORE_HEAD_VARIABLE):
        plan_replica_bundle_shape(4, _topology=nodes(8, head=0))


def test_where_nodes_have_no_type_label_the_head_is_excluded_by_its_id() -> None:
    cluster = Cluster([Node("h", {"GPU": 8}, head=True), Node("w", {"GPU": 8})])
    assert shape_for(cluster, 4, ignore_head=True).bundle_label_selector == [{"ray.io/node-id": "!h"}]
