"""Placement groups on real Ray: all or none are built, and failures are explained."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from muster.placement.planning.cluster import Node

ray = pytest.importorskip("ray")

from muster.placement.errors import PlacementError
from muster.placement.planning.cluster import mismatch
from muster.placement.planning.planner import FREE
from muster.placement.runtime import bundles, groups
from muster.placement.runtime.nodes import check_total_gpu_capacity, discover_nodes
from muster.placement.runtime.shape import plan_replica_bundle_shape

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def test_discovery_finds_total_and_free_resources_of_nodes(group: Any, head: Node, worker: Node) -> None:
    def taken() -> bool:
        return [node.available.get("GPU", 0) for node in discover_nodes().nodes if not node.head] == [2]

    end = time.monotonic() + 30
    while not taken():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (head.total["GPU"], worker.total["GPU"]) == (2, 4)
    assert worker.label("rack") == "b" and head.label("ray.io/node-id") == head.id


@pytest.mark.parametrize("wanted", ["a", "!a", "in(a,c)", "!in(b,c)", "in(c)", "!c"])
def test_a_selector_means_to_the_planner_what_it_means_to_ray(wanted: str) -> None:
    fitting = {node.id for node in discover_nodes().nodes if not mismatch(node, {"rack": wanted})}
    request = groups.GroupRequest(f"selector-{wanted}", [{"CPU": 1}], "STRICT_PACK", [{"rack": wanted}])
    if not fitting:
        with pytest.raises(PlacementError, match="can never fit"):
            groups.build_groups([request], timeout_s=30)
        return
    (made,) = groups.build_groups([request], timeout_s=30)
    assert bundles.get_bundle_node_id(made, 0) in fitting
    groups.remove_groups([made])


def test_a_label_that_no_node_has_matches_only_its_negation(head: Node) -> None:
    (made,) = groups.build_groups([groups.GroupRequest("unset", [{"CPU": 1}], "PACK", [{"nothing": "!x"}])])
    groups.remove_groups([made])


def test_a_group_that_can_never_fit_fails_at_once_and_names_what_each_node_lacks() -> None:
    started = time.monotonic()
    with pytest.raises(PlacementError) as caught:
        groups.build_pg([{"CPU": 1, "GPU": 5}], "STRICT_PACK", name="too-large", ready_timeout_s=120)
    assert time.monotonic() - started < 60  # not the timeout
    words = str(caught.value)
    assert "'too-large' can never fit" in words
    assert "lacks 3 GPU (2 GPU left of 2 GPU)" in words and "lacks 1 GPU (4 GPU left of 4 GPU)" in words
    assert not groups.find_groups(lambda name: name == "too-large")


def test_of_several_groups_all_or_none_are_built_and_a_busy_cluster_is_explained() -> None:
    told: list[str] = []
    wanted = [groups.GroupRequest(f"all-{n}", [{"CPU": 1, "GPU": 2}], "STRICT_PACK") for n in range(3)]
    made = groups.build_groups(wanted, timeout_s=60, progress=told.append)
    assert [name in groups.find_groups(lambda name: name.startswith("all-")) for name in ("all-0", "all-2")] == [
        True
    ] * 2
    with pytest.raises(PlacementError, match="after 1 s placement groups are not ready: more-1") as caught:
        groups.build_groups(
            [
                groups.GroupRequest("more-0", [{"CPU": 1}], "STRICT_PACK"),
                groups.GroupRequest("more-1", [{"CPU": 1, "GPU": 1}], "STRICT_PACK"),
            ],
            timeout_s=1,
            progress=told.append,
        )
    assert "would if nothing else ran" in str(caught.value) and "lacks 1 GPU (0 GPU left of 4 GPU)" in str(caught.value)
    assert "1 of 2 placement groups are ready" in told
    assert not groups.find_groups(lambda name: name.startswith("more-"))
    groups.remove_groups(made)


def test_a_sweep_of_groups_by_prefix_removes_what_matches_and_nothing_else() -> None:
    wanted = [groups.GroupRequest(name, [{"CPU": 0.1}], "PACK") for name in ("sweep-a", "sweep-b", "keep-a")]
    made = groups.build_groups(wanted)
    assert groups.remove_named_pgs_with_prefix("sweep-") == 2
    assert groups.remove_named_pgs_with_prefix("sweep-") == 0
    assert list(groups.find_groups(lambda name: name.startswith("keep-"))) == ["keep-a"]
    with pytest.raises(ValueError, match="empty prefix"):
        groups.remove_named_pgs_with_prefix("")
    groups.remove_groups(made)


def test_a_bundle_has_an_address_and_leases_every_port_once(group: Any, worker: Node) -> None:
    assert bundles.get_bundle_node_ip(group, 1).count(".") == 3
    assert bundles.get_bundle_node_id(group, 1) == worker.id
    given = [bundles.get_free_port_in_bundle(group, 1, 30500) for _ in range(2)]
    assert len(set(given)) == 2 and min(given) >= 30500
    with pytest.raises(ValueError, match=r"has bundles \[0, 1\], not 2"):
        bundles.get_bundle_node_ip(group, 2)


def test_a_replica_is_shaped_for_this_cluster_and_built(monkeypatch: pytest.MonkeyPatch, worker: Node) -> None:
    monkeypatch.setenv("CURATOR_IGNORE_RAY_HEAD_NODE", "1")
    spec = plan_replica_bundle_shape(2)
    made = groups.build_replica_pg(spec, name="replica")
    assert bundles.get_bundle_node_id(made, 0) == worker.id
    groups.remove_groups([made])


def test_capacity_is_free_or_total_and_may_exclude_the_head(group: Any) -> None:
    check_total_gpu_capacity(6)
    with pytest.raises(RuntimeError, match="7 GPUs are required; 2 nodes have 6 total"):
        check_total_gpu_capacity(7)
    with pytest.raises(RuntimeError, match="5 GPUs are required; the 1 nodes besides the head have 4 total"):
        check_total_gpu_capacity(5, ignore_head_node=True)
    with pytest.raises(RuntimeError, match=r"besides the head have \d free"):
        check_total_gpu_capacity(5, ignore_head_node=True, against=FREE)
