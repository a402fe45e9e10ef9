"""Groups of nodes: accepted and refused ones, and the values that each group resolves to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.spec import JobSpec, SpecError, load_job
from muster.spec.fields.groups import resolved

TWO = [{"name": "trainers", "nodes": 2, "gpus_per_node": 8}, {"name": "actors", "nodes": 3}]


def job(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ["true"], "groups": TWO, **fields})


def test_the_job_has_as_many_nodes_as_its_groups() -> None:
    assert job().nodes == 5
    assert job(nodes=5).nodes == 5


def test_a_number_of_nodes_that_differs_from_the_groups_is_refused() -> None:
    with pytest.raises(SpecError, match="groups: they have 5 nodes in total, but nodes is 4"):
        load_job(None, {"command": ["true"], "groups": TWO, "nodes": "4"})


def test_two_groups_of_one_name_are_refused() -> None:
    with pytest.raises(SpecError, match="'a' is the name of two groups"):
        load_job(None, {"command": ["true"], "groups": [{"name": "a", "nodes": 1}, {"name": "a", "nodes": 1}]})


def test_groups_are_read_from_a_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [true]\ngroups:\n  - {name: big, nodes: 2, constraint: a100}\n  - {name: small, nodes: 1}\n"
    )
    spec = load_job(file, {})
    assert (spec.nodes, [group.name for group in spec.groups], spec.groups[0].constraint) == (
        3,
        ["big", "small"],
        "a100",
    )


@pytest.mark.parametrize("group", [{"name": "a"}, {"nodes": 1}, {"name": "a", "nodes": 0}, {"name": "a b", "nodes": 1}])
def test_a_group_without_name_or_nodes_is_refused(group: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="groups"):
        load_job(None, {"command": ["true"], "groups": [group]})


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ("name: a, nodes: 1, gpu: 8", "group 1: unknown field 'gpu' of a group; did you mean gpus_per_node?"),
        ("name: a, nodes: 1, nodez: 8", "group 1: unknown field 'nodez' of a group; did you mean nodes, nodelist?"),
        ("name: a, nodes: 1, qq: 8", "group 1: unknown field 'qq' of a group; valid fields: name, nodes, cpus_per"),
        ("name: a", "group 1: the field nodes is missing"),
        ("name: a, nodes: 0", "group 1, nodes: '0' is not valid"),
        ("name: a b, nodes: 1", "group 1, name: 'a b' is not a name of letters"),
    ],
)
def test_a_mistake_in_a_group_names_the_group_and_the_field(group: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"command: [true]\ngroups: [{{{group}}}]\n")
    with pytest.raises(SpecError) as refused:
        load_job(file, {})
    (line,) = refused.value.problems
    assert line.startswith(f"{file}:2: groups, {told}")


def test_a_group_that_is_not_in_a_list_is_refused_with_its_unknown_field(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("command: [true]\ngroups: {gpu: 8}\n")
    with pytest.raises(SpecError) as refused:
        load_job(file, {})
    assert str(refused.value) == (
        f"{file}:2: groups: unknown field 'gpu' of a group; did you mean gpus_per_node? allowed: a list of groups, as "
        "in [{name: trainers, nodes: 2, gpus_per_node: 8}]"
    )


def test_a_group_belongs_to_the_job_s_ray_cluster_unless_it_says_otherwise() -> None:
    groups = [{"name": "trainers", "nodes": 2}, {"name": "engines", "nodes": 1, "ray": "false"}]
    assert [group.ray for group in resolved(job(groups=groups))] == [True, False]
    assert [group.ray for group in resolved(job(groups=groups, ray=False))] == [False, False]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"groups": [{"name": "a", "nodes": 1, "ray": False}]}, "the driver are on the first node of the first group"),
        ({"groups": [{"name": "a", "nodes": 1, "ray": True}], "ray": False}, "but the job starts no Ray"),
        (
            {"groups": [*TWO, {"name": "b", "nodes": 1, "ray": False, "ray_resource": {"disk": 1}}]},
            "'b' has ray_resource, but ray: false",
        ),
    ],
)
def test_a_group_s_part_of_the_ray_cluster_must_fit_the_job(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        job(**fields)


def test_a_group_s_own_field_wins_over_the_job_s() -> None:
    first, second = resolved(job(gpus_per_node=4, partition="gpu", mem="64G"))
    assert (first.gpus_per_node, second.gpus_per_node) == (8, 4)
    assert (first.partition, second.mem) == ("gpu", "64G")


def test_a_group_s_gpus_replace_the_job_s_in_either_notation() -> None:
    (group,) = resolved(job(groups=[{"name": "a", "nodes": 1, "gres": "gpu:a100:2"}], gpus_per_node=4))
    assert (group.gres, group.gpus_per_node) == ("gpu:a100:2", None)


def test_a_group_s_resources_and_labels_are_added_to_the_job_s() -> None:
    groups = [
        {"name": "a", "nodes": 1, "ray_resource": {"disk": 2}, "ray_label": {"role": "a"}},
        {"name": "b", "nodes": 1},
    ]
    first, second = resolved(job(groups=groups, ray_resource={"disk": 1, "net": 1}, ray_label={"site": "x"}))
    assert (first.ray_resource, second.ray_resource) == ({"disk": 2, "net": 1}, {"disk": 1, "net": 1})
    assert (first.ray_label, second.ray_label) == ({"site": "x", "role": "a"}, {"site": "x"})
