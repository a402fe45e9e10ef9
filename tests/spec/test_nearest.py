"""The known words that an unknown one may stand for."""

from __future__ import annotations

import pytest

from muster.spec.nearest import did_you_mean, nearest

FIELDS = ("name", "nodes", "nodelist", "gpus_per_node")


@pytest.mark.parametrize(
    ("word", "found"),
    [("nodez", ["nodes", "nodelist"]), ("gpu", ["gpus_per_node"]), ("Nodes", ["nodes", "nodelist"]), ("qq", [])],
)
def test_misspellings_and_beginnings_are_recognized(word: str, found: list[str]) -> None:
    assert nearest(word, FIELDS) == found


def test_the_question_ends_in_a_remedy_where_nothing_is_near() -> None:
    assert did_you_mean("nodez", FIELDS, "see --help") == "did you mean nodes, nodelist?"
    assert did_you_mean("qq", FIELDS, "see --help") == "see --help"
