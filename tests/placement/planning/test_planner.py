"""Plans: where replicas go, and the explanation if they do not fit."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from tests.placement.planning.clusters import cluster

from muster.placement.planning.cluster import Cluster, Node
from muster.placement.planning.planner import Outcome, plan
from muster.placement.planning.request import PACK, STRICT_PACK, STRICT_SPREAD, Model

GIB = 2**30


def test_a_replica_that_fits_one_node_is_put_on_one() -> None:
    made = plan(cluster(8, 4), [Model("m", tp=8)])
    (placed,) = made.replicas
    assert placed.nodes == ("n0",)
    assert placed.bundles == [{"CPU": 1, "GPU": 8}] and placed.shape.strategy == STRICT_PACK


def test_a_replica_too_large_for_a_node_is_split_into_equal_parts_over_the_fewest_nodes() -> None:
    (placed,) = plan(cluster(4, 2, 4), [Model("m", tp=8)]).replicas
    assert placed.nodes == ("n0", "n2")
    assert placed.bundles == [{"CPU": 1, "GPU": 4}] * 2 and placed.shape.strategy == STRICT_SPREAD


def test_an_unequal_split_is_none() -> None:
    assert plan(cluster(1, 3), [Model("m", tp=4)]).outcome is Outcome.INFEASIBLE


def test_replicas_of_one_model_may_differ_in_shape() -> None:
    made = plan(cluster(4, 2, 2), [Model("m", replicas=2, tp=4)])
    assert made.fits
    assert [placed.shape.count for placed in made.replicas] == [1, 2]


def test_several_models_are_planned_at_once_the_largest_first() -> None:
    made = plan(cluster(8, 8), [Model("small", replicas=8), Model("large", tp=8)])
    assert made.fits
    assert len({node for placed in made.of("small") for node in placed.nodes}) == 1  # the other node is left whole


def test_a_small_replica_goes_where_least_is_left() -> None:
    nodes = [Node("n0", {"CPU": 8, "GPU": 8}), Node("n1", {"CPU": 8, "GPU": 8}, {"CPU": 8, "GPU": 2})]
    assert plan(Cluster(nodes), [Model("m")]).replicas[0].nodes == ("n1",)


def test_cpus_and_memory_count_too() -> None:
    node = Node("n0", {"CPU": 4, "GPU": 8, "memory": 64 * GIB})
    assert len(plan(Cluster([node]), [Model("m", replicas=9, cpus=1)]).replicas) == 4
    assert len(plan(Cluster([node]), [Model("m", replicas=9, cpus=0.1, memory_per_gpu=20 * GIB)]).replicas) == 3
    assert plan(Cluster([node]), [Model("m", replicas=10, cpus=0.4, gpus_per_rank=0)]).fits  # no float's rounding


def test_bundles_that_are_packed_loosely_share_a_node_where_they_can() -> None:
    made = plan(cluster(4, 4), [Model("m", replicas=2, tp=4, strategy=PACK, bundles=4)])
    assert [set(placed.nodes) for placed in made.replicas] == [{"n0"}, {"n1"}]
    assert plan(cluster(3, 1), [Model("m", tp=4, strategy=PACK, bundles=4)]).fits
    assert not plan(cluster(3, 1), [Model("m", tp=4, strategy=STRICT_PACK, bundles=4)]).fits


def test_all_parts_of_a_replica_stay_in_one_domain() -> None:
    nodes = [Node(f"n{i}", {"CPU": 4, "GPU": 4}, labels={"rack": rack}) for i, rack in enumerate("abbacc")]
    made = plan(Cluster(nodes), [Model("m", replicas=3, tp=8, same="rack")])
    assert sorted(sorted(placed.nodes) for placed in made.replicas) == [["n0", "n3"], ["n1", "n2"], ["n4", "n5"]]
    assert not plan(Cluster(nodes[:3] + nodes[4:5]), [Model("m", replicas=2, tp=8, same="rack")]).fits


def test_the_head_is_left_out_where_that_is_asked_for() -> None:
    made = plan(cluster(8, 4), [Model("m", tp=8, exclude_head=True)])
    assert made.outcome is Outcome.INFEASIBLE
    assert "n0: is the head, which is excluded" in made.explain()


def test_labels_must_fit() -> None:
    nodes = [Node(name, {"CPU": 1, "GPU": 1}, labels={"gpu": name}) for name in ("a100", "h100")]
    model = Model("m", selector={"gpu": "in(h100,b200)"})
    assert plan(Cluster(nodes), [model]).replicas[0].nodes == ("h100",)
    refused = plan(Cluster(nodes[:1]), [model]).explain()
    assert "a100: label gpu is 'a100', not in(h100,b200)" in refused


def test_an_empty_cluster_holds_nothing_and_an_empty_request_fits() -> None:
    assert plan(Cluster([]), [Model("m")]).outcome is Outcome.INFEASIBLE
    assert plan(Cluster([]), []).fits


def test_a_search_out_of_budget_does_not_claim_a_proof() -> None:
    models = [Model(f"m{number}", gpus_per_rank=size) for number, size in enumerate([7, 6, 2, 2])]
    assert plan(cluster(9, 8), models).fits  # 7 + 2 and 6 + 2: with 7 on the node of 8 it does not work out
    undecided = plan(cluster(9, 8), models, work=0)
    assert undecided.outcome is Outcome.UNDECIDED
    assert "the search used up its budget" in undecided.explain()
    assert plan(cluster(9, 7), models, work=0).outcome is Outcome.INFEASIBLE  # 17 of 16: the bounds are proof enough


@pytest.mark.parametrize("replicas", [{"tp": 8}, {"tp": 16}, {"tp": 8, "pp": 2, "same": "rack"}, {"tp": 4}])
def test_a_thousand_nodes_and_five_hundred_replicas_need_no_search(replicas: dict[str, int]) -> None:
    nodes = Cluster(
        Node(f"n{number}", {"CPU": 128, "GPU": 8, "memory": 2**40 + number}, labels={"rack": str(number // 20)})
        for number in range(1000)
    )
    made = plan(nodes, [Model("m", replicas=500, memory=64 * GIB, **replicas)], work=0)  # type: ignore[arg-type]
    assert made.fits and len(made.replicas) == 500
    used = Counter(node for placed in made.replicas for node in placed.nodes)
    assert max(used.values()) <= 8 // min(replicas["tp"], 8)


def test_planning_needs_no_ray() -> None:
    program = "import sys; from muster.placement import Model, plan; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_a_plan_is_made_against_free_or_total_resources_and_nothing_else() -> None:
    with pytest.raises(ValueError, match="'free' or 'total' resources, not 'all'"):
        plan(cluster(1), [Model("m")], against="all")


def test_replicas_are_listed_in_the_order_of_the_request_and_missing_ones_counted() -> None:
    made = plan(cluster(4, 4), [Model("small"), Model("large", replicas=3, gpus_per_rank=4)])
    assert [(placed.model, placed.replica) for placed in made.replicas] == [("large", 0), ("large", 1)]
    assert made.missing == {"small": 1, "large": 1} and made.of("small") == []


def test_the_bundles_of_a_strict_pack_all_have_the_same_node() -> None:
    (placed,) = plan(cluster(1, 4), [Model("m", tp=4, strategy=STRICT_PACK, bundles=2)]).replicas
    assert placed.nodes == ("n1", "n1") and placed.bundles == [{"CPU": 1, "GPU": 2}] * 2
