"""Models and the shapes that one replica may have."""

from __future__ import annotations

import pytest
from tests.placement.planning.clusters import cluster

from muster.placement.planning.planner import plan
from muster.placement.planning.request import PACK, STRICT_PACK, STRICT_SPREAD, Model, Shape


def test_pipeline_stages_stay_whole_before_they_are_split() -> None:
    shapes = Model("m", tp=4, pp=2).shapes()
    assert [shape.count for shape in shapes] == [1, 2, 4, 8]
    assert [shape.count for shape in Model("m", tp=4, pp=3).shapes()] == [
        1,
        3,
        6,
        12,
    ]  # 2 would cut one of three stages


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


def test_the_shapes_of_a_model_are_equal_splits_the_fewest_bundles_first() -> None:
    shapes = Model("m", tp=4, cpus=1, cpus_per_gpu=2, memory_per_gpu=10, memory=5).shapes()
    assert [(shape.count, shape.strategy) for shape in shapes] == [
        (1, STRICT_PACK),
        (2, STRICT_SPREAD),
        (4, STRICT_SPREAD),
    ]
    assert [dict(shape.bundle) for shape in shapes] == [
        {"CPU": 9, "GPU": 4, "memory": 45},
        {"CPU": 5, "GPU": 2, "memory": 25},
        {"CPU": 3, "GPU": 1, "memory": 15},
    ]


def test_a_strategy_gives_one_shape_with_a_bundle_for_each_stage_unless_given() -> None:
    assert [shape.count for shape in Model("m", tp=2, pp=3, strategy=PACK).shapes()] == [3]
    (shape,) = Model("m", tp=2, pp=3, strategy=PACK, bundles=6).shapes()
    assert (shape.count, shape.bundle) == (6, {"CPU": 1, "GPU": 1})


def test_a_program_without_gpus_is_one_bundle_with_its_resources() -> None:
    (shape,) = Model("m", tp=4, gpus_per_rank=0, resources={"disk": 2}).shapes()
    assert (shape.count, shape.bundle) == (1, {"CPU": 1, "disk": 2})


def test_a_shape_is_shown_with_its_amounts() -> None:
    assert str(Shape(1, {"GPU": 2, "CPU": 0.5}, STRICT_PACK)) == "0.5 CPU + 2 GPU"
    assert str(Shape(2, {"CPU": 1, "memory": 3 * 2**30}, PACK)) == "2 x (1 CPU + 3 GiB memory), PACK"
