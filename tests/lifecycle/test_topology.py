"""Ranks by topology: their order, whole segments, and the replacement of a lost node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.commands import StartDriver, StartHead, StartWorker
from tests.lifecycle.conftest import Run

from muster.lifecycle.config import REPLACE, RESTART, RunConfig
from muster.lifecycle.events import Arrived, DriverEnded, Event, HeadUp, NodeFailed, NodeGone, NodeLost, NodeReady, Tick
from muster.lifecycle.states import RunState
from muster.lifecycle.topology import NodeLocation

# Locations of eight nodes; the leader, node 0, is in domain b.
LEAVES = ["b", "a", "b", "a10", "a9", "b", "a9", "a10"]
LOST = "connection ended"


def plan(nodes: int, **fields: object) -> RunConfig:
    hosts = [f"n{node_index}" for node_index in range(nodes)]
    return replace(RunConfig(hosts, ray=False, gather_timeout=100.0, topology=True), **fields)  # type: ignore[arg-type]


def come(*node_indexes: int, leaves: list[str] = LEAVES) -> list[Event]:
    return [
        Arrived(
            node_index,
            f"n{node_index}",
            NodeLocation(leaves[node_index], f"{leaves[node_index]}.n{node_index}" if leaves[node_index] else ""),
        )
        for node_index in node_indexes
    ]


def by_rank(run: Run) -> list[int]:
    """Return the numbers of the active nodes in the order of their logical ranks."""
    ranked = [(node.rank, node.node_index) for node in run.protocol.nodes if node.rank is not None]
    return [node_index for _, node_index in sorted(ranked)]


# -- order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [range(8), reversed(range(8)), [3, 0, 7, 1, 6, 2, 5, 4]], ids=["up", "down", "mixed"])
def test_the_leader_s_domain_comes_first_then_domain_by_domain_whatever_the_order_of_arrival(order: list[int]) -> None:
    run = Run(plan(8))
    run.feed(*come(*order))
    assert by_rank(run) == [0, 2, 5, 1, 4, 6, 3, 7]


def test_spares_are_the_last_in_that_order_and_gaps_change_nothing_in_it() -> None:
    run = Run(plan(8, spares=2))
    run.feed(NodeFailed(2, "start", "--health-check failed"), *come(7, 6, 5, 4, 3, 1, 0))
    assert by_rank(run) == [0, 5, 1, 4, 6, 3]


def test_inside_a_domain_the_address_counts_before_the_number() -> None:
    run = Run(plan(3))
    run.feed(
        *(
            Arrived(node_index, f"n{node_index}", NodeLocation("d", address))
            for node_index, address in enumerate(["d.9", "d.10", "d.2"])
        )
    )
    assert by_rank(run) == [0, 2, 1]


def test_where_ranks_do_not_follow_places_they_are_the_numbers_whatever_nodes_say() -> None:
    run = Run(plan(8, topology=False))
    run.feed(*come(*reversed(range(8))))
    assert by_rank(run) == list(range(8))


def test_with_places_only_the_head_starts_before_all_are_there() -> None:
    run = Run(plan(3, ray=True))
    assert run.feed(*come(0, 1), HeadUp()) == [StartHead()]
    assert run.feed(*come(2)) == [StartWorker(1), StartWorker(2)]
    assert run.feed(NodeReady(0), NodeReady(1), NodeReady(2)) == [StartDriver()]
    assert by_rank(run) == [0, 2, 1]


# -- whole segments ---------------------------------------------------------------------------------------------


def test_every_segment_is_in_one_domain_and_the_remaining_nodes_are_spares() -> None:
    run = Run(plan(8, spares=4, segment=2))
    run.feed(*come(*range(8)))
    assert by_rank(run) == [0, 2, 4, 6]
    assert [node.node_index for node in run.protocol.nodes if node.role.value == "spare"] == [1, 3, 5, 7]


def test_a_round_with_enough_nodes_waits_for_whole_segments() -> None:
    run = Run(plan(8, spares=4, segment=2, last_call=0.0))
    run.feed(*come(0, 1, 3, 4))
    assert run.state is RunState.GATHERING
    run.feed(*come(2))
    assert run.state is RunState.GATHERING
    run.feed(*come(6))
    assert by_rank(run) == [0, 2, 4, 6]


def test_the_deadline_counts_segments() -> None:
    run = Run(plan(8, spares=2, segment=2))
    run.feed(*come(0, 2, 3, 4, 7, 1))
    run.feed(Tick(), at=100.0)
    why = "n5, n6 did not arrive within 100 s; 2 whole segments of 2 nodes are available, and the job needs 3"
    assert run.outcome.end_reason == why


def test_too_few_segments_with_all_nodes_arrived_end_the_run_before_the_deadline() -> None:
    run = Run(plan(8, spares=2, segment=3))
    run.feed(*come(*range(8)))
    assert run.outcome.end_reason == "1 whole segment of 3 nodes is left, and the job needs 2"


@pytest.mark.parametrize(
    ("domain", "why"),
    [("z", "in its domain z"), ("", "since its domain is not known (MUSTER_DOMAIN names it)")],
)
def test_a_leader_in_no_whole_segment_ends_the_run_with_its_name(domain: str, why: str) -> None:
    run = Run(plan(8, spares=4, segment=2))
    run.feed(*come(*range(8), leaves=[domain, *LEAVES[1:]]))
    assert run.outcome.end_reason == f"n0, which leads the run, is in no whole segment of 2 nodes {why}"


def test_a_loss_that_leaves_enough_nodes_but_too_few_whole_segments_ends_the_run() -> None:
    run = Run(plan(8, spares=4, segment=2, on_node_loss=RESTART, max_restarts=3))
    run.feed(*come(*range(8), leaves=["b", "b", "a", "a", "c", "d", "e", "f"]))
    run.feed(NodeLost(2, LOST))
    assert run.outcome.end_reason == f"{LOST}; 1 whole segment of 2 nodes is left, and the job needs 2"


def test_a_new_cycle_moves_to_another_whole_segment() -> None:
    run = Run(plan(8, spares=4, segment=2, on_node_loss=RESTART, max_restarts=3))
    run.feed(*come(*range(8)), NodeLost(4, LOST), DriverEnded(143, "was ended"))
    run.feed(*(NodeGone(node_index, 1) for node_index in (0, 1, 2, 3, 5, 6, 7)))
    assert by_rank(run) == [0, 2, 3, 7]


# -- replacement ------------------------------------------------------------------------------------------------


def test_with_segments_only_a_spare_of_the_lost_node_s_domain_replaces_it() -> None:
    run = Run(plan(8, spares=4, segment=2, on_node_loss=REPLACE))
    run.feed(*come(*range(8)))
    run.feed(NodeLost(2, LOST))
    assert by_rank(run) == [0, 5, 4, 6]
    run.feed(NodeLost(4, LOST))
    assert run.outcome.end_reason == f"{LOST}; no spare is left in its domain a9"


@pytest.mark.parametrize(("gone", "next_one"), [(5, 2), (2, 5), (3, 5)])
def test_without_segments_the_nearest_spare_is_promoted(gone: int, next_one: int) -> None:
    """Its domain comes before its switch, before any other; of equally near ones the first in order."""
    addresses = ["s1.a.n0", "s2.c.n1", "s2.d.n2", "s3.e.n3", "s1.b.n4", "s2.c.n5"]
    run = Run(plan(6, spares=4, on_node_loss=REPLACE))
    run.feed(
        *(
            Arrived(node_index, f"n{node_index}", NodeLocation(at.rpartition(".")[0], at))
            for node_index, at in enumerate(addresses)
        )
    )
    assert by_rank(run) == [0, 4]
    run.feed(NodeLost(4, LOST))
    assert by_rank(run) == [0, 1]
    run.feed(NodeLost(gone, LOST), NodeLost(1, LOST))
    assert by_rank(run) == [0, next_one]
