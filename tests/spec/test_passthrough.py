"""`--sbatch KEY=VALUE`: every option ends up in exactly one place, its field or the pass-through."""

from __future__ import annotations

from typing import Any

import pytest

from muster.spec.model import FLAGS
from muster.spec.passthrough import MovedOptions, move_options


def moved(sbatch: Any, **fields: Any) -> MovedOptions:
    return move_options({**fields, "sbatch": sbatch}, FLAGS)


def test_an_option_with_a_field_moves_there_and_its_spelling_is_remembered() -> None:
    result = moved({"p": "gpu", "--time": "30", "wckey": "w"})
    assert result.values == {"partition": "gpu", "time": "30", "sbatch": {"wckey": "w"}}
    assert (result.moved, result.problems) == ({"partition": "p", "time": "--time"}, [])


def test_an_option_that_is_removed_stays_in_the_passthrough() -> None:
    assert moved({"partition": ""}).values == {"sbatch": {"partition": ""}}


def test_an_option_without_a_value_is_true_in_its_field_and_none_in_the_passthrough() -> None:
    assert moved({"exclusive": None, "requeue": None}).values == {"exclusive": True, "sbatch": {"requeue": None}}


@pytest.mark.parametrize(("value", "kept"), [("true", None), ("TRUE", None), ("false", ""), ("", ""), (True, None)])
def test_true_and_false_switch_an_option_that_takes_no_value(value: object, kept: str | None) -> None:
    assert moved({"hold": value}).values == {"sbatch": {"hold": kept}}


@pytest.mark.parametrize(
    ("sbatch", "fields", "problem"),
    [
        ({"ntasks": "4"}, {}, ("ntasks", "cannot be set here: Muster runs one agent on every node")),
        ({"hold": "3"}, {}, ("hold", "takes no value, but has '3'; write only hold")),
        ({"mem-per-cpu": "1G", "mem_per_cpu": "2G"}, {}, ("mem_per_cpu", "is given twice, as '1G' and as '2G'")),
        ({"p": "a"}, {"partition": "b"}, ("p", "is 'a', but --partition (field partition) is 'b'; give it once")),
        ({"p": ""}, {"partition": "b"}, ("p", "is removed, but --partition (field partition) is 'b'; give it once")),
        ({"p": "a", "partition": "b"}, {}, ("partition", "is 'b', but --partition (field partition) is 'a'")),
    ],
)
def test_a_refused_key_is_reported_as_written_and_left_out(
    sbatch: dict[str, Any], fields: dict[str, Any], problem: tuple[str, str]
) -> None:
    result = moved(sbatch, **fields)
    ((key, reason),) = result.problems
    assert key == problem[0] and reason.startswith(problem[1])
    assert key not in result.values["sbatch"] and key not in result.moved.values()


def test_the_same_value_in_both_places_is_no_conflict() -> None:
    result = moved({"partition": "gpu", "exclusive": "TRUE"}, partition="gpu", exclusive=True)
    assert result.problems == [] and result.values["partition"] == "gpu" and result.values["sbatch"] == {}


@pytest.mark.parametrize("given", [{}, {"nodes": 2}, {"sbatch": None}, {"sbatch": "mem=4G"}])
def test_fields_without_a_mapping_of_options_are_left_to_the_model(given: dict[str, Any]) -> None:
    result = move_options(given, FLAGS)
    assert result.values == given and result.values is not given and not result.moved and not result.problems


def test_the_given_fields_are_not_changed() -> None:
    given = {"sbatch": {"p": "gpu"}}
    move_options(given, FLAGS)
    assert given == {"sbatch": {"p": "gpu"}}
