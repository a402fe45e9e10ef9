"""Proofs that a request cannot be placed: exact for one model, never wrong for several."""

from __future__ import annotations

import pytest
from tests.placement.planning.clusters import cluster

from muster.placement.planning.bounds import max_replicas, proves_infeasible
from muster.placement.planning.cluster import Cluster, Node
from muster.placement.planning.encoding import encode
from muster.placement.planning.request import PACK, STRICT_SPREAD, Model


def most(nodes: Cluster, model: Model) -> int:
    problem = encode(nodes, [model], total=True)
    return max_replicas(problem.demands[0].pieces[0], 0, model.replicas, problem.start())


def infeasible(nodes: Cluster, *models: Model) -> bool:
    problem = encode(nodes, models, total=True)
    return proves_infeasible(problem, 0, models[0].replicas, problem.start())


@pytest.mark.parametrize(
    ("gpus", "bundles", "expected"),
    [
        ((8,), 2, 0),  # both bundles would be on the same node
        ((8, 8), 2, 8),
        ((1, 1, 8), 2, 2),  # the large node takes one bundle of each replica
        ((3, 3, 3), 2, 4),
        ((2, 2, 2, 2), 4, 2),
        ((), 2, 0),
    ],
)
def test_spread_bundles_are_limited_by_the_number_of_nodes(gpus: tuple[int, ...], bundles: int, expected: int) -> None:
    model = Model("m", replicas=20, tp=bundles, cpus=0, strategy=STRICT_SPREAD, bundles=bundles)
    assert most(cluster(*gpus), model) == expected


def test_bundles_that_may_share_a_node_are_limited_by_the_room_of_a_domain() -> None:
    model = Model("m", replicas=20, tp=4, cpus=0, strategy=PACK, bundles=4)
    assert most(cluster(3, 3), model) == 1  # 6 bundles fit, in one domain
    nodes = [Node(f"n{i}", {"GPU": 3}, labels={"rack": str(i)}) for i in range(2)]
    by_rack = Model("m", replicas=20, tp=4, cpus=0, strategy=PACK, bundles=4, same="rack")
    assert most(Cluster(nodes), by_rack) == 0  # 3 in each


def test_no_more_replicas_are_counted_than_wanted() -> None:
    assert most(cluster(8), Model("m", replicas=3)) == 3


def test_a_resource_that_all_models_together_exceed_is_a_proof() -> None:
    assert infeasible(cluster(4, 4), Model("a", replicas=3, tp=2), Model("b", replicas=2, tp=2))
    assert not infeasible(cluster(4, 4), Model("a", replicas=2, tp=2), Model("b", replicas=2, tp=2))


def test_a_later_model_that_does_not_fit_by_itself_is_a_proof() -> None:
    tall = Model("tall", gpus_per_rank=6)
    assert infeasible(cluster(4, 4), Model("small"), tall)
    assert not infeasible(cluster(4, 6), Model("small"), tall)


def test_what_fits_only_one_by_one_is_not_proven_infeasible() -> None:
    """6, 5 and 3 GPUs on two nodes of 7: each fits by itself, and so does the sum. The search decides."""
    models = [Model(f"m{gpus}", gpus_per_rank=gpus) for gpus in (6, 5, 3)]
    assert not infeasible(cluster(7, 7), *models)


def test_a_proof_counts_only_the_replicas_that_are_left() -> None:
    problem = encode(cluster(2), [Model("m", replicas=3)], total=True)
    assert [proves_infeasible(problem, 0, left, problem.start()) for left in (1, 2, 3)] == [False, False, True]
