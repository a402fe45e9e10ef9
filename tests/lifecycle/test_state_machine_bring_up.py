"""The bring-up of a run: the commands and the outcome of each event in each state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.commands import Conclude, StartDriver, StartHead, StartWorker, StopNode
from tests.lifecycle.conftest import PLAN, Run, arrived

from muster.lifecycle.events import Arrived, DriverEnded, Event, HeadUp, NodeGone, NodeReady, RunOutcome, Tick
from muster.lifecycle.state_machine import RunConfig
from muster.lifecycle.states import NodeState, RunState

# -- bringing up ------------------------------------------------------------------------------------------------


def test_the_head_starts_when_the_leader_arrives_though_others_are_missing(run: Run) -> None:
    assert run.feed(*arrived(0)) == [StartHead()]
    assert run.state is RunState.GATHERING
    assert run.nodes() == [NodeState.STARTING, NodeState.EXPECTED, NodeState.EXPECTED]


def test_workers_that_wait_start_the_moment_the_head_is_up(run: Run) -> None:
    assert run.feed(*arrived(1, 0)) == [StartHead()]
    assert run.feed(HeadUp()) == [StartWorker(1)]


def test_a_worker_that_arrives_after_the_head_is_up_starts_at_once(run: Run) -> None:
    run.feed(*arrived(0), HeadUp())
    assert run.feed(*arrived(2)) == [StartWorker(2)]
    assert run.feed(*arrived(1)) == [StartWorker(1)]


def test_gathering_is_over_when_the_last_node_has_arrived(run: Run) -> None:
    run.feed(*arrived(0, 2))
    assert run.state is RunState.GATHERING
    run.feed(*arrived(1))
    assert run.state is RunState.STARTING


def test_the_driver_starts_once_and_only_when_every_node_is_ready(starting: Run) -> None:
    assert starting.feed(HeadUp(), NodeReady(0), NodeReady(2)) == [StartWorker(1), StartWorker(2)]
    assert starting.feed(NodeReady(1)) == [StartDriver()]
    assert starting.state is RunState.RUNNING
    assert starting.feed(NodeReady(1), NodeReady(0), HeadUp(), *arrived(1)) == []


def test_no_driver_while_a_node_is_missing_though_all_others_are_ready(run: Run) -> None:
    assert run.feed(*arrived(0, 1), HeadUp(), NodeReady(0), NodeReady(1)) == [StartHead(), StartWorker(1)]
    assert run.feed(*arrived(2)) == [StartWorker(2)]
    assert run.feed(NodeReady(2)) == [StartDriver()]


def test_without_ray_a_node_that_has_arrived_is_ready() -> None:
    run = Run(replace(PLAN, ray=False))
    assert run.feed(*arrived(1, 0)) == []
    assert run.feed(*arrived(2)) == [StartDriver()]
    assert run.nodes() == [NodeState.READY] * 3


def test_a_node_that_does_not_belong_to_ray_is_ready_when_it_arrives() -> None:
    run = Run(replace(PLAN, without_ray=frozenset({2})))
    assert run.feed(*arrived(2, 0, 1), HeadUp()) == [StartHead(), StartWorker(1)]
    assert run.nodes() == [NodeState.STARTING, NodeState.STARTING, NodeState.READY]
    assert run.feed(NodeReady(0), NodeReady(1)) == [StartDriver()]


def test_one_node_is_a_whole_run() -> None:
    run = Run(RunConfig(["n0"]))
    assert run.feed(*arrived(0), HeadUp(), NodeReady(0)) == [StartHead(), StartDriver()]
    assert run.feed(DriverEnded(0, "exited with 0")) == [StopNode(0)]
    assert run.feed(NodeGone(0)) == [Conclude()]


def test_a_node_is_known_by_the_name_it_came_with(run: Run) -> None:
    run.feed(Arrived(1, "gpu-17"))
    assert run.protocol.nodes[1].host == "gpu-17"


def test_a_second_arrival_of_the_same_rank_changes_nothing(run: Run) -> None:
    run.feed(*arrived(0))
    assert run.feed(Arrived(0, "impostor")) == []
    assert run.protocol.nodes[0].host == "n0"


@pytest.mark.parametrize(
    "event", [HeadUp(), NodeReady(0), NodeReady(1), NodeGone(1), DriverEnded(0, "exited with 0")], ids=str
)
def test_an_event_that_does_not_fit_the_state_changes_nothing(run: Run, event: Event) -> None:
    assert run.feed(event) == []
    assert run.feed(*arrived(1)) == []  # the head is not up yet
    assert (run.state, run.protocol.outcome) == (RunState.GATHERING, None)
    assert run.nodes() == [NodeState.EXPECTED, NodeState.ARRIVED, NodeState.EXPECTED]


def test_a_worker_that_was_not_started_cannot_be_ready(run: Run) -> None:
    run.feed(*arrived(0, 1), NodeReady(1))
    assert run.nodes()[1] is NodeState.ARRIVED
    assert run.feed(HeadUp()) == [StartWorker(1)]


# -- deadlines --------------------------------------------------------------------------------------------------


def test_nodes_that_do_not_arrive_are_named_when_the_deadline_passes(run: Run) -> None:
    run.feed(*arrived(0))
    assert run.feed(Tick(), at=99.9) == []
    assert run.feed(Tick(), at=100.0) == [StopNode(0)]
    assert run.outcome == RunOutcome("failed", 125, "n1, n2 did not arrive within 100 s", "n1", 1, "gathering")


def test_when_no_node_arrives_the_deadline_ends_the_run_at_once(run: Run) -> None:
    assert run.feed(Tick(), at=100.0) == [Conclude()]
    assert run.state is RunState.FAILED


def test_the_names_of_many_missing_nodes_are_cut_short() -> None:
    run = Run(RunConfig([f"n{node_index}" for node_index in range(64)], gather_timeout=5.0))
    run.feed(Tick(), at=5.0)
    assert run.outcome.end_reason == "n0, n1, n2, n3, n4, n5, n6, n7 and 56 more did not arrive within 5 s"


def test_nodes_on_which_ray_is_late_are_named_when_the_deadline_passes(run: Run) -> None:
    run.feed(*arrived(0, 1, 2), at=60.0)
    run.feed(HeadUp(), NodeReady(0), NodeReady(2))
    assert run.feed(Tick(), at=109.9) == []  # counted from the end of gathering
    assert run.feed(Tick(), at=110.0) == [StopNode(0), StopNode(1), StopNode(2)]
    assert run.outcome == RunOutcome("failed", 125, "Ray was not up on n1 within 50 s", "n1", 1, "starting")


def test_a_running_driver_has_no_deadline(running: Run) -> None:
    assert running.feed(Tick(), at=1e9) == []
    assert running.state is RunState.RUNNING
