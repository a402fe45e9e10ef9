"""Runs with spares: which nodes are active, which spare replaces a lost node, and which losses have no effect."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.commands import Conclude, EndDriver, StartDriver, StartHead, StartWorker, StopNode
from tests.lifecycle.conftest import Run
from tests.lifecycle.four_nodes import CONFIG, EXCLUDED, SPARE, active, arrived, driving, roles

from muster.lifecycle.config import REPLACE
from muster.lifecycle.events import (
    DriverEnded,
    Event,
    HeadUp,
    NodeFailed,
    NodeGone,
    NodeLost,
    NodeReady,
    RunOutcome,
    Tick,
)
from muster.lifecycle.state_machine import FAILURE_GRACE_S
from muster.lifecycle.states import NodeState, RunState


@pytest.fixture
def run() -> Run:
    return Run(CONFIG)


@pytest.fixture
def running() -> Run:
    return driving(CONFIG)


# -- roles ------------------------------------------------------------------------------------------------------


def test_nodes_beyond_the_wanted_number_are_spares_and_the_driver_does_not_wait_for_them(run: Run) -> None:
    assert run.feed(*arrived(3, 2, 1, 0)) == [StartHead()]
    assert roles(run) == [*active(0, 1, 2), SPARE]
    assert run.feed(HeadUp(), NodeReady(0)) == [StartWorker(1), StartWorker(2)]
    assert run.feed(NodeReady(1), NodeReady(2)) == [StartDriver()]
    assert run.nodes()[3] is NodeState.ARRIVED


def test_no_worker_starts_before_the_round_has_closed_since_roles_are_unknown(run: Run) -> None:
    assert run.feed(*arrived(0, 3), HeadUp()) == [StartHead()]
    assert run.feed(*arrived(1)) == []
    assert run.feed(*arrived(2)) == [StartWorker(1), StartWorker(2)]


def test_ranks_follow_the_node_s_number_and_not_the_order_of_arrival(run: Run) -> None:
    run.feed(*arrived(3, 2, 0), NodeFailed(1, "start", "--health-check failed"))
    assert roles(run) == [*active(0), EXCLUDED, *active(1, 2)]


def test_without_ray_the_driver_starts_when_the_round_closes() -> None:
    run = Run(replace(CONFIG, ray=False))
    assert run.feed(*arrived(0, 1, 3)) == []
    assert run.feed(*arrived(2)) == [StartDriver()]
    assert run.nodes() == [NodeState.READY] * 3 + [NodeState.ARRIVED]


# -- when a round closes ----------------------------------------------------------------------------------------


def test_a_round_with_enough_nodes_waits_for_the_last_call_and_no_longer(run: Run) -> None:
    run.feed(*arrived(0, 1, 3), at=10.0)
    run.feed(Tick(), at=14.9)
    assert run.state is RunState.GATHERING
    run.feed(Tick(), at=15.0)
    assert run.state is RunState.STARTING
    assert roles(run) == [*active(0, 1), SPARE, *active(2)]


def test_within_the_last_call_a_late_node_still_takes_its_place_from_a_spare(run: Run) -> None:
    run.feed(*arrived(0, 1, 3), at=10.0)
    run.feed(*arrived(2), at=12.0)
    assert roles(run) == [*active(0, 1, 2), SPARE]


def test_the_deadline_does_not_wait_for_the_last_call(run: Run) -> None:
    run.feed(*arrived(0, 1, 3), at=98.0)
    run.feed(Tick(), at=100.0)
    assert run.state is RunState.STARTING


def test_a_node_that_arrives_after_the_round_closed_is_a_spare(run: Run) -> None:
    run.feed(*arrived(0, 1, 3), HeadUp())
    run.feed(Tick(), at=5.0)
    assert run.feed(*arrived(2)) == []
    assert roles(run) == [*active(0, 1), SPARE, *active(2)]
    assert run.feed(NodeReady(0), NodeReady(1), NodeReady(3)) == [StartDriver()]


def test_the_round_closes_although_a_node_died_after_it_had_arrived(run: Run) -> None:
    run.feed(*arrived(0, 2, 1), NodeLost(1, "connection ended"))
    assert run.state is RunState.GATHERING
    run.feed(*arrived(3))
    assert roles(run) == [*active(0), EXCLUDED, *active(1, 2)]


def test_too_few_nodes_by_the_deadline_are_a_timeout_that_names_the_missing(run: Run) -> None:
    run.feed(*arrived(0, 2))
    assert run.feed(Tick(), at=100.0) == [StopNode(0), StopNode(2)]
    why = "n1, n3 did not arrive within 100 s; 2 of the 3 nodes that the job needs are available"
    assert run.outcome == RunOutcome("failed", 125, why, "n1", 1, "gathering")


def test_without_the_leader_a_round_does_not_close(run: Run) -> None:
    run.feed(*arrived(1, 2, 3))
    run.feed(Tick(), at=50.0)
    assert run.state is RunState.GATHERING
    run.feed(Tick(), at=100.0)
    assert "n0 did not arrive" in run.outcome.end_reason


# -- before the driver runs -------------------------------------------------------------------------------------


def test_a_node_that_fails_before_it_joined_is_done_without(run: Run) -> None:
    assert run.feed(NodeFailed(2, "start", "--health-check failed"), *arrived(0, 1, 3)) == [StartHead()]
    assert run.state is RunState.STARTING
    assert run.protocol.cycle == 0


def test_more_failed_nodes_than_spares_end_the_run(run: Run) -> None:
    run.feed(*arrived(0), NodeFailed(2, "start", "--health-check failed"))
    assert run.feed(NodeFailed(3, "start", "--setup failed")) == [StopNode(0)]
    why = "--setup failed; 2 usable nodes are left, and the job needs 3"
    assert run.outcome == RunOutcome("failed", 125, why, "n3", 3, "start")


def test_a_spare_takes_the_rank_of_a_node_on_which_ray_did_not_start(run: Run) -> None:
    run.feed(*arrived(0, 1, 2, 3), HeadUp(), NodeReady(0), NodeReady(2))
    assert run.feed(NodeFailed(1, "ray", "`ray start` exited with 1")) == [StopNode(1), StartWorker(3)]
    assert roles(run) == [*active(0), EXCLUDED, *active(2, 1)]
    assert run.feed(NodeGone(1)) == []
    assert run.feed(NodeReady(3)) == [StartDriver()]
    assert (run.protocol.cycle, run.protocol.outcome) == (0, None)


def test_a_spare_that_takes_a_place_before_the_head_is_up_starts_with_the_others(run: Run) -> None:
    run.feed(*arrived(0, 1, 2, 3))
    assert run.feed(NodeLost(2, "connection ended")) == []
    assert run.feed(HeadUp()) == [StartWorker(1), StartWorker(3)]


def test_a_node_on_which_ray_is_late_loses_its_rank_to_a_spare(run: Run) -> None:
    run.feed(*arrived(0, 1, 2, 3), HeadUp(), NodeReady(0), NodeReady(1))
    assert run.feed(Tick(), at=50.0) == [StopNode(2), StartWorker(3)]
    assert run.feed(NodeReady(3), at=60.0) == [StartDriver()]


def test_two_late_nodes_and_one_spare_are_the_end(run: Run) -> None:
    run.feed(*arrived(0, 1, 2, 3), HeadUp(), NodeReady(0))
    run.feed(Tick(), at=50.0)
    assert run.outcome.end_reason == "Ray was not up on n1, n2 within 50 s; no spare is left"


def test_a_head_that_does_not_start_ends_the_run_if_too_few_other_nodes_are_left(run: Run) -> None:
    run.feed(*arrived(0, 1, 2, 3), NodeLost(1, "gone"), NodeFailed(0, "ray", "`ray start` exited with 1"))
    reason = "`ray start` exited with 1; 2 usable nodes are left, and the job needs 3"
    assert run.outcome == RunOutcome("failed", 125, reason, "n0", 0, "ray")


# -- under the driver -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [NodeLost(3, "connection ended"), NodeFailed(3, "ray", "no Ray")], ids=str)
@pytest.mark.parametrize("policy", ["fail", "replace", "restart"])
def test_the_end_of_a_spare_changes_nothing(policy: str, event: Event) -> None:
    run = driving(replace(CONFIG, on_node_loss=policy, max_restarts=3))
    assert [c for c in run.feed(event) if c != StopNode(3)] == []
    assert (run.state, run.protocol.cycle) == (RunState.RUNNING, 0)
    run.feed(DriverEnded(0, "exited with 0"), *(NodeGone(node_index) for node_index in range(4)))
    assert run.outcome == RunOutcome("succeeded", 0, "the driver exited with 0")


def test_a_dead_spare_is_never_promoted() -> None:
    run = driving(replace(CONFIG, on_node_loss=REPLACE))
    run.feed(NodeFailed(3, "ray", "Ray cannot be imported"))
    assert run.feed(NodeLost(1, "connection ended")) == [EndDriver(FAILURE_GRACE_S)]
    assert run.outcome == RunOutcome("failed", 125, "connection ended; no spare is left", "n1", 1, "running", lost=True)


def test_by_default_a_lost_active_node_ends_the_run_though_there_is_a_spare(running: Run) -> None:
    assert running.feed(NodeLost(1, "connection ended")) == [EndDriver(FAILURE_GRACE_S)]
    assert running.outcome == RunOutcome("failed", 125, "connection ended", "n1", 1, "running", lost=True)


def test_a_spare_replaces_a_lost_node_under_its_rank_and_the_driver_continues() -> None:
    run = driving(replace(CONFIG, on_node_loss=REPLACE))
    assert run.feed(NodeLost(1, "connection ended")) == [StartWorker(3)]
    assert roles(run) == [*active(0), EXCLUDED, *active(2, 1)]
    assert run.feed(NodeReady(3)) == []
    assert (run.state, run.protocol.cycle, run.protocol.deadline) == (RunState.RUNNING, 0, None)


def test_a_replacement_that_fails_is_replaced_itself_and_the_last_failure_is_the_end() -> None:
    run = driving(replace(CONFIG, on_node_loss=REPLACE))
    run.feed(NodeLost(1, "connection ended"))
    run.feed(NodeFailed(3, "ray", "`ray start` exited with 1"))
    assert run.outcome.end_reason == "`ray start` exited with 1; no spare is left"


def test_a_replacement_that_does_not_come_up_in_time_is_the_end() -> None:
    run = driving(replace(CONFIG, on_node_loss=REPLACE))
    run.feed(NodeLost(1, "connection ended"), at=1000.0)
    assert run.feed(Tick(), at=1049.9) == []
    run.feed(Tick(), at=1050.0)
    assert run.outcome.end_reason == "Ray was not up on n3 within 50 s; no spare is left"


def test_a_lost_head_cannot_be_replaced() -> None:
    run = driving(replace(CONFIG, on_node_loss=REPLACE))
    run.feed(NodeFailed(0, "ray", "Ray's gcs_server exited with 1"))
    assert run.outcome == RunOutcome("failed", 125, "Ray's gcs_server exited with 1", "n0", 0, "ray")


@pytest.mark.parametrize("code", [0, 7])
def test_when_the_driver_has_ended_spares_are_stopped_like_all_nodes(running: Run, code: int) -> None:
    assert running.feed(DriverEnded(code, f"exited with {code}")) == [StopNode(node_index) for node_index in range(4)]
    assert running.feed(*(NodeGone(node_index) for node_index in range(4))) == [Conclude()]
    assert running.outcome.exit_code == code
