"""The planner finds a plan exactly when a checker does that tries every bundle on every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from muster.placement.planning.cluster import Cluster, Node, mismatch
from muster.placement.planning.planner import FREE, TOTAL, Outcome, Plan, plan
from muster.placement.planning.request import PACK, STRICT_PACK, STRICT_SPREAD, Model, Shape

MOST_BUNDLES = 7

AMOUNTS = st.fixed_dictionaries({"GPU": st.integers(0, 5), "CPU": st.integers(0, 6), "memory": st.integers(0, 4)})
LABELS = st.fixed_dictionaries({}, optional={"rack": st.sampled_from("ab"), "kind": st.sampled_from("xy")})


@st.composite
def clusters(draw: Any) -> Cluster:
    nodes = []
    for number in range(draw(st.integers(0, 4))):
        total = draw(AMOUNTS)
        taken = draw(st.sampled_from([0, 0, 1, 2]))
        free = {name: max(0, amount - taken) for name, amount in total.items()}
        nodes.append(Node(f"n{number}", total, free, draw(LABELS), head=number == 0))
    return Cluster(nodes)


@st.composite
def a_model(draw: Any, name: str) -> Model:
    tp, pp = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (1, 3), (1, 4)]))
    strategy = draw(st.sampled_from([None, None, STRICT_PACK, STRICT_SPREAD, PACK]))
    counts = [count for count in range(1, 5) if tp * pp % count == 0]
    return Model(
        name,
        replicas=draw(st.integers(1, 3)),
        tp=tp,
        pp=pp,
        gpus_per_rank=draw(st.sampled_from([0, 1, 1, 1])),
        cpus=draw(st.sampled_from([1, 1, 2, 0.5])),
        memory=draw(st.integers(0, 2)),
        strategy=strategy,
        bundles=draw(st.sampled_from(counts)) if strategy is not None else None,
        selector=draw(st.sampled_from([{}, {}, {"kind": "x"}, {"kind": "!y"}, {"rack": "in(a,b)"}])),
        same=draw(st.sampled_from([None, None, "rack"])),
        exclude_head=draw(st.booleans()),
    )


@st.composite
def requests(draw: Any) -> list[Model]:
    models, left = [], MOST_BUNDLES
    for number in range(draw(st.integers(1, 3))):
        model = draw(a_model(f"m{number}"))
        left -= model.replicas * max(shape.count for shape in model.shapes())
        if left >= 0:
            models.append(model)
    return models


# -- the checker --------------------------------------------------------------------------------------------------


def exists(cluster: Cluster, models: list[Model], against: str) -> bool:
    """Every shape of every replica, every bundle on every node: no cleverness, so that it can be believed."""
    free = [Counter(node.total if against == TOTAL else node.available) for node in cluster.nodes]
    return _rest_fits(cluster, [model for model in models for _ in range(model.replicas)], free)


def _rest_fits(cluster: Cluster, replicas: list[Model], free: list[Counter[str]]) -> bool:
    if not replicas:
        return True
    for shape in replicas[0].shapes():
        for chosen in _ways(shape, len(free)):
            after = [Counter(have) for have in free]
            for node in chosen:
                after[node].subtract(shape.bundle)
            if (
                all(amount >= -1e-9 for have in after for amount in have.values())
                and allowed(cluster, replicas[0], shape, chosen)
                and _rest_fits(cluster, replicas[1:], after)
            ):
                return True
    return False


def _ways(shape: Shape, nodes: int) -> Iterator[tuple[int, ...]]:
    """Bundles are equal: their order does not matter."""

    def extend(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(chosen) == shape.count:
            yield chosen
            return
        for node in range(chosen[-1] if chosen else 0, nodes):
            yield from extend((*chosen, node))

    return extend(())


def allowed(cluster: Cluster, model: Model, shape: Shape, chosen: tuple[int, ...]) -> bool:
    nodes = [cluster.nodes[node] for node in chosen]
    if any((model.exclude_head and node.head) or mismatch(node, model.selector) for node in nodes):
        return False
    if shape.strategy == STRICT_PACK and len(set(chosen)) > 1:
        return False
    if shape.strategy == STRICT_SPREAD and len(set(chosen)) < len(chosen):
        return False
    values = {node.labels.get(model.same) for node in nodes} if model.same is not None else set()
    return len(values) < 2 and (None not in values or len(set(chosen)) == 1)


def assert_keeps_every_promise(made: Plan) -> None:
    """Enough of everything on every node, each replica complete and where it may be."""
    numbers = {node.id: number for number, node in enumerate(made.cluster.nodes)}
    left = [Counter(node.total if made.against == TOTAL else node.available) for node in made.cluster.nodes]
    for model in made.models:
        placed = made.of(model.name)
        assert [each.replica for each in placed] == list(range(model.replicas - made.missing.get(model.name, 0)))
        for each in placed:
            chosen = tuple(numbers[node] for node in each.nodes)
            assert each.shape in model.shapes() and len(chosen) == each.shape.count
            assert allowed(made.cluster, model, each.shape, chosen)
            for node in chosen:
                left[node].subtract(each.shape.bundle)
    assert all(amount >= -1e-9 for have in left for amount in have.values())


@settings(max_examples=400, deadline=None)
@given(cluster=clusters(), models=requests(), against=st.sampled_from([FREE, FREE, TOTAL]))
def test_a_plan_exists_exactly_when_trying_everything_finds_one(
    cluster: Cluster, models: list[Model], against: str
) -> None:
    made = plan(cluster, models, against=against)
    event(made.outcome.value)
    assert_keeps_every_promise(made)
    assert made.fits is exists(cluster, models, against)
    if not made.fits:
        assert (made.outcome is Outcome.BUSY) is (against == FREE and exists(cluster, models, TOTAL))
        assert made.outcome is not Outcome.UNDECIDED
        assert made.missing
    assert made.explain()


@st.composite
def filled_to_the_brim(draw: Any) -> tuple[Cluster, list[Model]]:
    """A cluster made to measure: somewhere in it there is exactly the room that is asked for, and hardly more."""
    models = [
        Model(
            f"m{number}",
            replicas=draw(st.integers(1, 4)),
            gpus_per_rank=draw(st.integers(1, 5)),
            cpus=draw(st.integers(1, 6)),
            memory=draw(st.integers(0, 3)),
            selector=draw(st.sampled_from([{}, {}, {"kind": "x"}])),
        )
        for number in range(draw(st.integers(2, 4)))
    ]
    kinds = ["x", *draw(st.lists(st.sampled_from("xy"), max_size=4))]
    totals: list[Counter[str]] = [Counter(GPU=draw(st.integers(0, 1))) for _ in kinds]
    for model in models:
        fitting = [number for number, kind in enumerate(kinds) if not model.selector or kind == "x"]
        for _ in range(model.replicas):
            totals[draw(st.sampled_from(fitting))].update(model.shapes()[0].bundle)
    nodes = [Node(f"n{number}", total, labels={"kind": kinds[number]}) for number, total in enumerate(totals)]
    return Cluster(nodes), models


@settings(max_examples=300, deadline=None)
@given(made_to_measure=filled_to_the_brim())
def test_a_cluster_made_to_measure_is_filled(made_to_measure: tuple[Cluster, list[Model]]) -> None:
    made = plan(*made_to_measure)
    assert_keeps_every_promise(made)
    assert made.fits, made.explain()


@settings(max_examples=150, deadline=None)
@given(made_to_measure=filled_to_the_brim(), data=st.data())
def test_with_a_little_less_than_that_trying_everything_decides(
    made_to_measure: tuple[Cluster, list[Model]], data: Any
) -> None:
    cluster, models = made_to_measure
    models = [replace(model, replicas=min(model.replicas, 2)) for model in models]
    short = data.draw(st.sampled_from(cluster.nodes))
    nodes = [
        replace(node, total={name: amount - (node is short and amount > 0) for name, amount in node.total.items()})
        for node in cluster.nodes
    ]
    made = plan(Cluster(nodes), models)
    assert made.fits is exists(Cluster(nodes), models, FREE)
