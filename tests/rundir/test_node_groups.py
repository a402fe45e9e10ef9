"""Groups of nodes by rank, and their labels and resources in Ray."""

from __future__ import annotations

import pytest

from muster.agent.ray import labels
from muster.agent.ray.labels import NodeFacts
from muster.rundir.node_groups import NodeGroup, group_of, groups_of, nodes_without_ray, ranks_of

GROUPS = [NodeGroup("big", 2, 64, 8), NodeGroup("small", 1, 4, 0)]


@pytest.mark.parametrize(("node_index", "name"), [(0, "big"), (1, "big"), (2, "small")])
def test_ranks_count_through_the_groups_in_order(node_index: int, name: str) -> None:
    group = group_of(node_index, GROUPS)
    assert group is not None and group.name == name


def test_a_group_has_the_ranks_after_those_of_the_groups_before_it() -> None:
    groups = [NodeGroup("a", 2), NodeGroup("b", 3, ray=False), NodeGroup("c", 1)]
    assert [ranks_of(name, groups) for name in "abc"] == [range(2), range(2, 5), range(5, 6)]
    assert nodes_without_ray(groups) == {2, 3, 4}
    with pytest.raises(ValueError, match="no group 'd'"):
        ranks_of("d", groups)


def test_a_job_without_groups_has_none() -> None:
    assert group_of(0, []) is None


def test_groups_are_read_from_the_job_s_record_and_other_keys_ignored() -> None:
    record = {"name": "big", "nodes": 2, "cpus_per_node": 64, "gpus_per_node": 8, "gres": None, "constraint": "a100"}
    assert groups_of([record]) == GROUPS[:1]


def test_a_node_of_a_group_carries_its_name_as_label_and_resource() -> None:
    facts = NodeFacts(2, "n3", group="small")
    assert labels.labels(facts)["muster.io/group"] == "small"
    assert labels.resources(facts, 0)["group_small"] == 1
