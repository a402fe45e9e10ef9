"""Cluster and models as vectors of integers; trimming makes equal nodes equivalent and loses nothing."""

from __future__ import annotations

from tests.placement.planning.clusters import cluster

from muster.placement.planning.cluster import Cluster, Node
from muster.placement.planning.encoding import Problem, encode
from muster.placement.planning.request import PACK, STRICT_PACK, STRICT_SPREAD, Model


def classes(problem: Problem) -> list[tuple[int, ...]]:
    return sorted(problem.start().values())


def test_amounts_are_divided_by_what_all_shapes_need_in_common() -> None:
    problem = encode(cluster(8, 5, cpus=7), [Model("a", gpus_per_rank=4, cpus=2)], total=True)
    assert problem.frees == ((3, 2), (3, 1))  # CPU in twos, GPU in fours
    assert problem.demands[0].pieces[0].needs == (1, 1)


def test_fractions_are_counted_exactly() -> None:
    nodes = Cluster([Node("n", {"CPU": 0.3})])
    problem = encode(nodes, [Model("m", gpus_per_rank=0, cpus=0.1)], total=True)
    assert problem.demands[0].pieces[0].room(problem.frees[0]) == 3
    tiny = encode(nodes, [Model("m", gpus_per_rank=0, cpus=1e-9)], total=True)
    assert tiny.demands[0].pieces[0].room(tiny.frees[0]) == 3000  # Ray's unit is the least amount


def test_free_or_total_resources_are_used() -> None:
    nodes = Cluster([Node("n", {"CPU": 4}, {"CPU": 1}), Node("o", {"CPU": 4}, {})])
    model = Model("m", gpus_per_rank=0)
    assert encode(nodes, [model], total=True).frees == ((4,), (4,))
    assert encode(nodes, [model], total=False).frees == ((1,), (0,))


def test_a_strict_pack_is_one_piece_with_the_sum_of_its_bundles() -> None:
    pieces = {
        strategy: encode(cluster(8), [Model("m", tp=4, cpus=1, strategy=strategy, bundles=2)], True)
        .demands[0]
        .pieces[0]
        for strategy in (STRICT_PACK, STRICT_SPREAD, PACK)
    }
    shapes = {strategy: (piece.bundles, piece.max_per_node) for strategy, piece in pieces.items()}
    assert shapes == {STRICT_PACK: (1, 1), STRICT_SPREAD: (2, 1), PACK: (2, 2)}
    assert pieces[STRICT_PACK].needs == (2, 2) and pieces[PACK].needs == (1, 1)


def test_nodes_that_differ_only_in_what_no_model_can_use_are_one_class() -> None:
    nodes = [Node(f"n{i}", {"CPU": 16 + i, "GPU": 4, "memory": 2**30 + i, "other": i}) for i in range(5)]
    assert classes(encode(Cluster(nodes), [Model("m", replicas=2, gpus_per_rank=4)], True)) == [(0, 1, 2, 3, 4)]


def test_nodes_on_which_no_bundle_fits_are_left_out() -> None:
    assert classes(encode(cluster(4, 1, 4), [Model("m", gpus_per_rank=2)], True)) == [(0, 2)]


def test_a_model_s_domains_follow_selector_head_and_label() -> None:
    nodes = [
        Node("h", {"CPU": 1}, head=True),
        Node("a", {"CPU": 1}, labels={"rack": "a"}),
        Node("b", {"CPU": 1}, labels={"rack": "b"}),
        Node("p", {"CPU": 1}),
    ]

    def domains(**fields: object) -> tuple[str | None, ...]:
        model = Model("m", gpus_per_rank=0, **fields)  # type: ignore[arg-type]
        return encode(Cluster(nodes), [model], True).demands[0].domains

    assert domains() == ("", "", "", "")
    assert domains(exclude_head=True) == (None, "", "", "")
    assert domains(selector={"rack": "a"}) == (None, "", None, None)
    assert domains(same="rack") == ("@h", "=a", "=b", "@p")  # without the label a node is a domain by itself


def test_the_next_level_merges_classes_that_only_the_first_model_told_apart() -> None:
    nodes = Cluster([Node("a", {"CPU": 4, "GPU": 4}), Node("b", {"CPU": 4, "GPU": 2}), Node("c", {"CPU": 4})])
    problem = encode(nodes, [Model("gpus", replicas=4), Model("cpus", gpus_per_rank=0, cpus=2)], True)
    state = problem.start()
    assert len(state) == 3
    merged = problem.next_level(state)
    assert [sorted(nodes) for nodes in merged.values()] == [[0, 1, 2]]
    assert all(len(signature) == 1 for signature, _ in merged)
