"""Placement groups on real Ray: all or none are built, and failures are explained."""

from __future__ import annotations

import time

import pytest

ray = pytest.importorskip("ray")

from muster.placement.errors import PlacementError
from muster.placement.planning.cluster import Cluster, Node, mismatch
from muster.placement.runtime import bundles, groups
from muster.placement.runtime.nodes import discover_nodes
from muster.placement.runtime.shape import plan_replica_bundle_shape

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


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


def test_a_replica_is_shaped_for_this_cluster_and_built(monkeypatch: pytest.MonkeyPatch, worker: Node) -> None:
    monkeypatch.setenv("CURATOR_IGNORE_RAY_HEAD_NODE", "1")
    spec = plan_replica_bundle_shape(2)
    made = groups.build_replica_pg(spec, name="replica")
    assert bundles.get_bundle_node_id(made, 0) == worker.id
    groups.remove_groups([made])


def test_an_explanation_counts_equal_bundles_together_and_names_the_others_by_number() -> None:
    cluster = Cluster([Node("n0", {"CPU": 2, "GPU": 1}), Node("n1", {"CPU": 2})])
    alike = groups.GroupRequest("alike", [{"GPU": 1}, {"GPU": 1}], "STRICT_SPREAD")
    assert "alike: no place for 1 of 1 replica" in groups.explain_group(alike, cluster)
    assert "2 x (1 GPU), STRICT_SPREAD: a bundle fits on 1 nodes, and needs 2" in groups.explain_group(alike, cluster)
    mixed = groups.GroupRequest("mixed", [{"CPU": 1}, {"GPU": 2}, {"CPU": 1}], "SPREAD")  # as PACK: a preference
    words = groups.explain_group(mixed, cluster)
    assert "bundles[0]: 1 replica of 2 x (1 CPU), PACK" in words and "bundles[1]: no place for 1 of 1 replica" in words


def test_an_explanation_of_a_busy_cluster_uses_the_free_resources_and_else_the_total() -> None:
    busy = Cluster([Node("n0", {"GPU": 4}, {"GPU": 1})])
    request = groups.GroupRequest("g", [{"GPU": 2}], "PACK")
    assert "n0: lacks 1 GPU (1 GPU left of 4 GPU)" in groups.explain_group(request, busy)
    large = groups.GroupRequest("g", [{"GPU": 5}], "PACK")
    assert "n0: lacks 1 GPU (4 GPU left of 4 GPU)" in groups.explain_group(large, busy)
