"""The text format of Prometheus: lines, labels and numbers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.prometheus import family, sample, text


def test_a_family_begins_with_its_description_and_kind() -> None:
    assert family("jobs", "gauge", [({"state": "idle"}, 2), ({}, 0.5)], "Jobs by state.") == [
        "# HELP jobs Jobs by state.",
        "# TYPE jobs gauge",
        'jobs{state="idle"} 2',
        "jobs 0.5",
    ]
    assert family("jobs", "counter", []) == ["# TYPE jobs counter"]


def test_labels_keep_their_order() -> None:
    assert sample("x", {"b": "1", "a": "2"}, 1) == 'x{b="1",a="2"} 1'


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (100, "100"), (0.5, "0.5"), (1e-7, "0"), (-2.25, "-2.25"), (1760000000.123456, "1760000000.123456")],
)
def test_a_number_has_no_exponent_and_no_needless_zeros(value: float, written: str) -> None:
    assert sample("x", {}, value) == f"x {written}"


@given(st.text())
def test_any_label_stays_on_its_line_and_can_be_read_back(value: str) -> None:
    line = sample("x", {"label": value}, 1)
    assert "\n" not in line
    quoted = re.fullmatch(r'x\{label="((?:[^"\\]|\\.)*)"\} 1', line, re.DOTALL)
    assert quoted is not None
    assert re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), quoted[1]) == value


def test_every_line_of_the_text_ends() -> None:
    assert text(["a", "b"]) == "a\nb\n" and text([]) == ""
