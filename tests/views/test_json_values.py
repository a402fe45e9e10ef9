"""Values of foreign JSON files in the expected type."""

from __future__ import annotations

import math
from typing import Any

import pytest

from muster.views.json_values import as_count, as_dict, as_dicts, as_int, as_text, as_time

ODD: tuple[Any, ...] = (None, True, "7", [], {}, [7], -1, math.nan, math.inf)


@pytest.mark.parametrize("value", ODD)
def test_numbers_of_another_type_or_out_of_range_are_none(value: Any) -> None:
    assert as_time(value) is as_int(value) is None
    assert as_count(value) == 0.0


def test_numbers_in_range_are_kept() -> None:
    assert (as_time(1760000000), as_time(0), as_time(1e11)) == (1760000000.0, None, None)
    assert (as_int(0), as_int(999_999), as_int(1_000_000), as_int(1.0)) == (0, 999_999, None, None)
    assert (as_count(0), as_count(2.5), as_count(1e15)) == (0, 2.5, 0.0)


@pytest.mark.parametrize("value", [None, True, 7, [], ["a"]])
def test_containers_and_texts_of_another_type_are_empty(value: Any) -> None:
    assert as_dict(value) == {} and as_dicts(value) == [] and as_text(value) == ""


def test_containers_and_texts_are_kept() -> None:
    assert (as_dict({"a": 1}), as_dicts([{"a": 1}, 7, []]), as_text("x")) == ({"a": 1}, [{"a": 1}], "x")
