"""Layers of fields: what a file's section contributes, where it was written, and how layers merge."""

from __future__ import annotations

from typing import Any

from muster.spec.layers import Layer, file_layer, make_layer, merge_layers


def layer(name: str, /, **values: Any) -> Layer:
    """A layer whose origins are the name and the field or entry."""
    return make_layer(values, [], lambda field, key: f"{name}:{field}" + (f".{key}" if key else ""))


def test_a_file_s_fields_get_their_names_and_their_origin() -> None:
    found = file_layer("job.yaml", {"job-name": "x", "cpus-per-node": "2", "env": {"A": "1"}})
    assert found.values == {"name": "x", "cpus_per_node": "2", "env": {"A": "1"}}
    assert found.origins == {
        "name": "job.yaml: name",
        "cpus_per_node": "job.yaml: cpus_per_node",
        "env": "job.yaml: env",
        "env.A": "job.yaml: env.A",
    }
    assert found.problems == []


def test_a_section_s_prefix_is_part_of_every_origin_and_problem() -> None:
    content = {"nodes": "2", "nodez": "3", "name": "a", "job_name": "b"}
    found = file_layer("site.yaml", content, prefix="profiles.gpu.", lines={"profiles.gpu.nodez": 7})
    assert found.origins["nodes"] == "site.yaml: profiles.gpu.nodes"
    assert found.problems[0] == "site.yaml:7: unknown field 'profiles.gpu.nodez'; did you mean nodes, nodelist?"
    assert found.problems[1] == (
        "site.yaml: profiles.gpu.name and profiles.gpu.job_name are the same field; give one of them"
    )
    assert found.values == {"nodes": "2", "name": "a"}


def test_a_field_that_resembles_none_gets_no_suggestion() -> None:
    (problem,) = file_layer("job.yaml", {"qqqq": 1}).problems
    assert problem == "job.yaml: unknown field 'qqqq'; fields are named as the flags in `muster run --help-all`"


def test_a_field_that_a_file_cannot_have_is_not_suggested() -> None:
    assert file_layer("job.yaml", {"nam": 1}).problems[0].endswith("did you mean name?")
    assert "did you mean" not in file_layer("site.yaml", {"nam": 1}, not_allowed=("name",)).problems[0]


def test_the_origin_of_an_sbatch_option_is_as_written_wherever_it_ends_up() -> None:
    found = layer("flag", sbatch={"p": "gpu", "L": "matlab:1", "ntasks": "4"})
    assert found.values == {"partition": "gpu", "sbatch": {"licenses": "matlab:1"}}
    assert found.origins["partition"] == "flag:sbatch.p"
    assert found.origins["sbatch.licenses"] == "flag:sbatch.L"
    assert [problem.partition(" ")[0] for problem in found.problems] == ["flag:sbatch.ntasks:"]


def test_later_layers_win_by_field_and_bring_their_origin() -> None:
    merged = merge_layers([layer("a", nodes=1, name="x"), layer("b", nodes=2), layer("c", time="30")])
    assert merged.values == {"nodes": 2, "name": "x", "time": "30"}
    assert merged.origins == {"nodes": "b:nodes", "name": "a:name", "time": "c:time"}


def test_entries_merge_one_by_one_and_an_empty_section_removes_none() -> None:
    merged = merge_layers([layer("a", env={"A": "1", "B": "1"}), layer("b", env={"B": "2"}), layer("c", env=None)])
    assert merged.values["env"] == {"A": "1", "B": "2"}
    assert (merged.origins["env.A"], merged.origins["env.B"]) == ("a:env.A", "b:env.B")


def test_entries_of_a_wrong_type_are_left_for_the_model_to_refuse() -> None:
    assert merge_layers([layer("a", env={"A": "1"}), layer("b", env=["A=2"])]).values["env"] == ["A=2"]


def test_a_removal_deletes_the_field_of_lower_layers_and_a_later_field_cancels_it() -> None:
    low, removal = layer("a", partition="cpu"), layer("b", sbatch={"partition": ""})
    assert merge_layers([low, removal]).values == {"sbatch": {"partition": ""}}
    assert merge_layers([low, removal, layer("c", partition="gpu")]).values == {"partition": "gpu", "sbatch": {}}


def test_the_problems_of_all_layers_are_kept_in_order() -> None:
    assert merge_layers([Layer(problems=["one"]), Layer(), Layer(problems=["two"])]).problems == ["one", "two"]


def test_no_layers_are_an_empty_layer() -> None:
    assert merge_layers([]) == Layer()


def test_merging_changes_no_layer() -> None:
    low, high = layer("a", env={"A": "1"}, sbatch={"output": ""}), layer("b", env={"B": "2"}, output="x")
    merge_layers([low, high])
    assert low.values == {"env": {"A": "1"}, "sbatch": {"output": ""}}
    assert high.values == {"env": {"B": "2"}, "output": "x"}
