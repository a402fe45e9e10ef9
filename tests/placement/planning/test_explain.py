"""Explanations of plans: where replicas go, and what each node lacks."""

from __future__ import annotations

from tests.placement.planning.clusters import cluster

from muster.placement.planning.cluster import Cluster, Node
from muster.placement.planning.planner import TOTAL, Outcome, plan
from muster.placement.planning.request import PACK, STRICT_PACK, STRICT_SPREAD, Model


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


def test_a_plan_that_fits_lists_its_replicas_and_counts_further_ones() -> None:
    words = plan(cluster(8, 1), [Model("m", replicas=9)]).explain().splitlines()
    assert words[0] == "9 replicas of m fit (2 nodes, planned against their free resources)"
    assert words[1] == "  m: 9 replicas of 1 CPU + 1 GPU"
    assert len(words) == 9 and words[-1] == "    ... and 3 more; 2 nodes in all"


def test_bundles_on_one_node_are_counted() -> None:
    model = Model("m", tp=3, strategy=PACK, bundles=3)
    assert "    0 on n0 x 2, n1" in plan(cluster(2, 1), [model]).explain()


def test_a_spread_that_lacks_nodes_says_how_many_fit_and_how_many_it_needs() -> None:
    model = Model("m", tp=3, strategy=STRICT_SPREAD, bundles=3)
    words = plan(cluster(4, 4), [model]).explain()
    assert "as 3 x (1 CPU + 1 GPU), STRICT_SPREAD: a bundle fits on 2 nodes, and needs 3" in words
    assert "n0, n1: has room for it, but too few other nodes have" in words


def test_a_domain_is_named_where_all_bundles_must_share_it() -> None:
    nodes = [Node(f"n{i}", {"CPU": 1, "GPU": 1}, labels={"rack": str(i)}) for i in range(2)]
    words = plan(Cluster(nodes), [Model("m", tp=2, same="rack")]).explain()
    assert "all bundles of a replica must be on nodes with the same rack" in words


def test_memory_is_shown_in_gib() -> None:
    words = plan(Cluster([Node("n0", {"memory": 2**30})]), [Model("m", gpus_per_rank=0, cpus=0, memory=3 * 2**30)])
    assert "n0: lacks 2 GiB memory (1 GiB memory left of 1 GiB memory)" in words.explain()


def test_many_models_are_counted() -> None:
    words = plan(cluster(8), [Model(f"m{number}") for number in range(7)]).explain()
    assert words.startswith("7 replicas of 7 models fit")
