"""Plans: where replicas go, and the explanation if they do not fit."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from muster.placement.planning.cluster import Cluster, Node
from muster.placement.planning.planner import TOTAL, Outcome, plan
from muster.placement.planning.request import PACK, STRICT_PACK, STRICT_SPREAD, Model

GIB = 2**30


def cluster(*gpus: int, cpus: int = 16, **labels: str) -> Cluster:
    """Nodes n0, n1, ... with so many GPUs; n0 is the head."""
    return Cluster(
        Node(f"n{number}", {"CPU": cpus, "GPU": count}, labels=labels, head=number == 0)
        for number, count in enumerate(gpus)
    )


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


def test_pipeline_stages_stay_whole_before_they_are_split() -> None:
    shapes = Model("m", tp=4, pp=2).shapes()
    assert [shape.count for shape in shapes] == [1, 2, 4, 8]
    assert [shape.count for shape in Model("m", tp=4, pp=3).shapes()] == [
        1,
        3,
        6,
        12,
    ]  # 2 would cut one of three stages


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


def test_taken_resources_make_a_plan_busy_and_the_plan_names_the_resources_it_used() -> None:
    busy = Cluster([Node("n0", {"CPU": 8, "GPU": 8}, {"CPU": 8, "GPU": 3})])
    made = plan(busy, [Model("m", tp=4)])
    assert made.outcome is Outcome.BUSY
    assert "planned against their free resources" in made.explain()
    assert "n0: lacks 1 GPU (3 GPU left of 8 GPU)" in made.explain()
    assert "total resources" in plan(busy, [Model("m", tp=4)], against=TOTAL).explain()


def test_missing_resources_are_named_node_by_node() -> None:
    nodes = [Node("n0", {"CPU": 8, "GPU": 4}), Node("n1", {"CPU": 1, "GPU": 8}), Node("n2", {"CPU": 8})]
    words = plan(
        Cluster(nodes),
        [
            Model("m", tp=4, strategy=STRICT_PACK, bundles=1, cpus=2),
            Model("l", tp=8, cpus=2, strategy=STRICT_PACK, bundles=1),
        ],
    ).explain()
    assert "cannot fit, not even on the empty cluster (3 nodes" in words
    assert "m: 1 replica of 2 CPU + 4 GPU\n    0 on n0" in words
    assert "l: no place for 1 of 1 replica" in words
    assert "n1: lacks 1 CPU (1 CPU left of 1 CPU)" in words
    assert "n2: lacks 8 GPU (0 GPU left of 0 GPU)" in words


def test_nodes_that_lack_the_same_share_a_line() -> None:
    words = plan(cluster(*[4] * 100), [Model("m", tp=8, strategy=STRICT_PACK, bundles=1)]).explain()
    assert "n0, n1, n2, n3, n4 and 95 more: lacks 4 GPU (4 GPU left of 4 GPU)" in words


def test_nodes_with_the_same_name_are_shown_with_their_ids() -> None:
    nodes = [Node(f"{number}" * 40, {"CPU": 1}, name="host") for number in range(2)]
    assert "0 on host (00000000)" in plan(Cluster(nodes), [Model("m", gpus_per_rank=0)]).explain()


def test_a_resource_that_all_models_together_exceed_is_named_in_one_line() -> None:
    words = plan(cluster(4, 4), [Model("a", replicas=3, tp=2), Model("b", replicas=2, tp=2)]).explain()
    assert "all together they need 10 GPU; the nodes have 8 GPU free" in words


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 0}, "tp must be at least 1, not 0"),
        ({"replicas": 0}, "replicas must be at least 1"),
        ({"cpus": -1}, "cpus must not be negative"),
        ({"strategy": "SPREAD"}, "strategy is one of STRICT_PACK, STRICT_SPREAD, PACK or none"),
        ({"bundles": 2}, "bundles=2 needs a strategy"),
        ({"bundles": 3, "tp": 4, "strategy": PACK}, "must divide the replica's 4 GPUs"),
        ({"selector": {"a": "in(b"}}, "a label selector is"),
        ({"gpus_per_rank": 0, "cpus": 0}, "a bundle must need something"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Model("m", **fields)  # type: ignore[arg-type]


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two models have the same name: m"):
        plan(cluster(8), [Model("m"), Model("m")])


def test_planning_needs_no_ray() -> None:
    program = "import sys; from muster.placement import Model, plan; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
