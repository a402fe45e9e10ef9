"""Texts for the end of a run."""

from __future__ import annotations

from dataclasses import replace

from muster.lifecycle import end_reasons
from muster.lifecycle.config import RunConfig
from muster.lifecycle.roles import RunNode, available_pool
from muster.lifecycle.states import NodeState

NODES = [RunNode(number, f"n{number}", NodeState.ARRIVED) for number in range(3)]


def test_a_long_list_of_names_is_shortened() -> None:
    assert end_reasons.listed(["n1", "n2"], most=2) == "n1, n2"
    assert end_reasons.listed(["n1", "n2", "n3"], most=2) == "n1, n2 and 1 more"


def test_the_reason_against_continuing_follows_the_first_reason() -> None:
    outcome = end_reasons.failure(NODES[1], "ray", "Ray exited with 1")
    assert (outcome.exit_code, outcome.node, outcome.node_index, outcome.phase) == (125, "n1", 1, "ray")
    assert end_reasons.because(outcome, "no spare is left").end_reason == "Ray exited with 1; no spare is left"
    assert end_reasons.because(outcome, "") == outcome


def test_too_few_nodes_are_described_with_the_unhealthy_ones() -> None:
    config = RunConfig([node.host for node in NODES])
    nodes = [*NODES[:2], replace(NODES[2], unhealthy_reason="too warm")]
    text = end_reasons.too_few(config, nodes, available_pool(nodes, config, leader=0))
    assert text == "2 usable nodes are left, and the job needs 3; n2 is unhealthy: too warm"


def test_an_unusable_leader_is_named() -> None:
    config = RunConfig([node.host for node in NODES])
    text = end_reasons.too_few(config, NODES, available_pool(NODES[1:], config, leader=0))
    assert text == "n0, which leads the run, cannot be used"
