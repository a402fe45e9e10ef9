"""Which group a node is in, and what of that reaches Ray."""

from __future__ import annotations

import json

import pytest

from muster.agent.groups import Group, group_of, groups_of
from muster.agent.ray_node.settings import RayOptions, start_arguments

GROUPS = [Group("big", 2, 64, 8), Group("small", 1, 4, 0)]


@pytest.mark.parametrize(("rank", "name"), [(0, "big"), (1, "big"), (2, "small")])
def test_ranks_count_through_the_groups_in_order(rank: int, name: str) -> None:
    group = group_of(rank, GROUPS)
    assert group is not None and group.name == name


def test_a_job_without_groups_has_none() -> None:
    assert group_of(0, []) is None


def test_groups_are_read_from_the_job_s_record_whatever_else_it_says() -> None:
    record = {"name": "big", "nodes": 2, "cpus_per_node": 64, "gpus_per_node": 8, "constraint": "a100"}
    assert groups_of([record]) == GROUPS[:1]


def test_a_node_of_a_group_carries_its_name_as_label_and_resource() -> None:
    options = RayOptions(cpus=4, gpus=0, dashboard=False, nodes=3, local=False, group="small")
    args = start_arguments(options, 2, "10.0.0.3", "/tmp/x", 4)
    (labels,) = [arg for arg in args if arg.startswith("--labels=")]
    (resources,) = [arg.partition("=")[2] for arg in args if arg.startswith("--resources=")]
    assert "muster.io/group=small" in labels.partition("=")[2].split(",")
    assert json.loads(resources) == {"group_small": 1}
    assert "--num-gpus=0" in args
