"""The configuration of a run: values that follow from others."""

from __future__ import annotations

import pytest

from muster.lifecycle.config import FIRST_LEADER, FIRST_TERM_START, RunConfig, TermStart, failover_allowed


@pytest.mark.parametrize(
    ("nodes", "on_node_loss", "max_restarts", "allowed"),
    [
        (3, "replace", 1, True),
        (3, "restart", 1, True),
        (10_000, "restart", 5, True),
        (2, "restart", 1, False),  # one of two nodes is no majority
        (1, "restart", 1, False),
        (3, "fail", 1, False),
        (3, "restart", 0, False),
    ],
)
def test_failover_needs_a_majority_and_a_restart(
    nodes: int, on_node_loss: str, max_restarts: int, allowed: bool
) -> None:
    assert failover_allowed(nodes, on_node_loss, max_restarts) == allowed
    hosts = [f"n{number}" for number in range(nodes)]
    assert RunConfig(hosts, on_node_loss=on_node_loss, max_restarts=max_restarts).failover == allowed


def test_spares_count_as_nodes_but_are_not_active() -> None:
    config = RunConfig(["n0", "n1", "n2"], spares=1)
    assert (config.nodes, config.active_nodes) == (3, 2)


@pytest.mark.parametrize(
    ("spares", "topology", "fixed"), [(0, False, True), (1, False, False), (0, True, False), (1, True, False)]
)
def test_ranks_are_fixed_unless_spares_or_the_topology_decide(spares: int, topology: bool, fixed: bool) -> None:
    assert RunConfig(["n0", "n1"], spares=spares, topology=topology).fixed_ranks == fixed


def test_the_first_term_begins_at_the_first_leader_with_the_first_cycle() -> None:
    assert TermStart(term=0, leader=FIRST_LEADER, cycle=0, excluded=frozenset(), lost=None) == FIRST_TERM_START
    assert FIRST_LEADER == 0  # the node that the job script's launcher and the submission expect to lead
