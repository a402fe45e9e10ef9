"""Nodes, their names, and label selectors."""

from __future__ import annotations

import pytest

from muster.placement.planning.cluster import (
    IGNORE_HEAD_VARIABLE,
    Cluster,
    Node,
    ignore_ray_head_node,
    mismatch,
    parse_selector,
)


def test_everything_of_a_node_is_free_unless_known_otherwise() -> None:
    assert Node("n", {"CPU": 4}).available == {"CPU": 4}
    assert Node("n", {"CPU": 4}, {"CPU": 1}).available == {"CPU": 1}
    assert Node("n", {"CPU": 4}, {}).available == {}


def test_every_node_has_the_label_of_its_id() -> None:
    node = Node("n", {}, labels={"rack": "a", "ray.io/node-id": "wrong"})
    assert (node.label("ray.io/node-id"), node.label("rack"), node.label("other")) == ("n", "a", None)


def test_two_nodes_with_the_same_id_are_refused() -> None:
    with pytest.raises(ValueError, match="same id"):
        Cluster([Node("n", {}), Node("n", {})])


def test_a_node_is_shown_by_its_name_and_by_its_id_where_it_has_none_or_shares_it() -> None:
    nodes = [Node("1" * 40, {}, name="a"), Node("2" * 40, {}, name="b"), Node("3" * 40, {}, name="b"), Node("4", {})]
    assert list(Cluster(nodes).names().values()) == ["a", "b (22222222)", "b (33333333)", "4"]


@pytest.mark.parametrize(
    ("selector", "on_a", "on_b", "unlabelled"),
    [
        ("a", True, False, False),
        ("!a", False, True, True),
        ("in(a, c)", True, False, False),
        ("!in(a,c)", False, True, True),
        ("in(a,b)", True, True, False),
    ],
)
def test_selectors_follow_ray_and_an_unset_label_matches_only_a_negation(
    selector: str, on_a: bool, on_b: bool, unlabelled: bool
) -> None:
    nodes = [Node("a", {}, labels={"rack": "a"}), Node("b", {}, labels={"rack": "b"}), Node("c", {})]
    assert [mismatch(node, {"rack": selector}) == "" for node in nodes] == [on_a, on_b, unlabelled]


def test_a_mismatch_names_the_first_label_that_does_not_match_and_its_value() -> None:
    node = Node("n", {}, labels={"gpu": "h100", "rack": "a"})
    assert mismatch(node, {"gpu": "h100", "rack": "!a", "other": "x"}) == "label rack is 'a', not !a"
    assert mismatch(node, {"zone": "z"}) == "label zone is not set, not z"


@pytest.mark.parametrize("selector", ["in(a", "a)", "!!a", "in(a)b", "in(in(a))"])
def test_an_invalid_selector_is_refused(selector: str) -> None:
    with pytest.raises(ValueError, match="a label selector is"):
        parse_selector(selector)


def test_the_head_is_excluded_by_node_type_where_all_others_have_it_and_else_by_its_id() -> None:
    typed = {"ray.io/node-type": "worker"}
    head, labelled, plain = Node("h", {}, head=True), Node("w", {}, labels=typed), Node("p", {})
    assert Cluster([head, labelled]).worker_selector() == typed
    assert Cluster([head, labelled, plain]).worker_selector() == {"ray.io/node-id": "!h"}
    assert Cluster([plain]).worker_selector() == {}


@pytest.mark.parametrize(
    ("value", "ignored"), [("1", True), (" TRUE ", True), ("yes", True), ("on", True), ("0", False), ("", False)]
)
def test_the_environment_may_exclude_the_head(monkeypatch: pytest.MonkeyPatch, value: str, ignored: bool) -> None:
    monkeypatch.setenv(IGNORE_HEAD_VARIABLE, value)
    assert ignore_ray_head_node() is ignored
    monkeypatch.delenv(IGNORE_HEAD_VARIABLE)
    assert ignore_ray_head_node() is False
