"""The end of a run: which event decides the outcome, in which order processes end, when the run is concluded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.lifecycle.commands import Conclude, EndDriver, StopNode
from tests.lifecycle.conftest import PLAN, Run, arrived

from muster.lifecycle.events import (
    DriverEnded,
    DriverStalled,
    Event,
    HeadUp,
    NodeFailed,
    NodeGone,
    NodeLost,
    NodeReady,
    RunOutcome,
    StopRequested,
    Tick,
)
from muster.lifecycle.state_machine import FAILURE_GRACE_S, FINISH_TIMEOUT_S, RunConfig
from muster.lifecycle.states import ENDED, NodeState, RunState

STOP = StopRequested("stopped by alice", signal=15, grace=30.0)
STOP_ALL = [StopNode(0), StopNode(1), StopNode(2)]
ALL_GONE = [NodeGone(0), NodeGone(1), NodeGone(2)]


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (7, "failed"), (143, "failed")])
def test_the_driver_s_exit_code_is_the_outcome(running: Run, code: int, state: str) -> None:
    assert running.feed(DriverEnded(code, f"exited with {code}")) == STOP_ALL
    assert running.state is RunState.FINISHING
    assert running.feed(*ALL_GONE) == [Conclude()]
    assert running.outcome == RunOutcome(state, code, f"the driver exited with {code}")
    assert running.state is RunState(state)


def test_a_stalled_driver_is_ended_as_after_a_failure(running: Run) -> None:
    assert running.feed(DriverStalled("no output for 60 s")) == [EndDriver(FAILURE_GRACE_S)]
    assert running.feed(DriverEnded(134, "was killed by SIGABRT"), *ALL_GONE)[-1] == Conclude()
    assert running.outcome == RunOutcome("failed", 125, "no output for 60 s", phase="stalled")


def test_a_driver_that_does_not_run_cannot_stall() -> None:
    assert starting().feed(DriverStalled("no output for 60 s")) == []


def test_the_run_is_over_only_when_the_last_node_is_gone(running: Run) -> None:
    running.feed(DriverEnded(0, "exited with 0"))
    assert running.feed(NodeGone(2), NodeGone(0)) == []
    assert running.feed(NodeGone(2)) == []
    assert running.feed(NodeGone(1)) == [Conclude()]


# -- failures ---------------------------------------------------------------------------------------------------


def gathering() -> Run:
    run = Run()
    run.feed(*arrived(0, 1))
    return run


def starting() -> Run:
    run = gathering()
    run.feed(*arrived(2), HeadUp(), NodeReady(0))
    return run


@pytest.mark.parametrize(("begin", "phase"), [(gathering, "gathering"), (starting, "starting")])
def test_a_node_lost_before_the_driver_runs_fails_the_run_with_its_name(begin: Callable[[], Run], phase: str) -> None:
    run = begin()
    rest = [
        node_index
        for node_index, state in enumerate(run.nodes())
        if state is not NodeState.EXPECTED and node_index != 1
    ]
    assert run.feed(NodeLost(1, "connection ended")) == [StopNode(node_index) for node_index in rest]
    assert run.outcome == RunOutcome("failed", 125, "connection ended", "n1", 1, phase, lost=True)
    assert run.feed(*(NodeGone(node_index) for node_index in rest)) == [Conclude()]


@pytest.mark.parametrize("begin", [gathering, starting])
def test_a_node_that_fails_before_the_driver_runs_is_stopped_like_the_others(begin: Callable[[], Run]) -> None:
    run = begin()
    joined = [node_index for node_index, state in enumerate(run.nodes()) if state is not NodeState.EXPECTED]
    assert run.feed(NodeFailed(1, "ray", "`ray start` exited with 1")) == [
        StopNode(node_index) for node_index in joined
    ]
    assert run.outcome == RunOutcome("failed", 125, "`ray start` exited with 1", "n1", 1, "ray")
    assert run.feed(*(NodeGone(node_index) for node_index in joined)) == [Conclude()]


def test_a_node_that_fails_before_it_joined_is_not_waited_for(run: Run) -> None:
    run.feed(*arrived(0))
    assert run.feed(NodeFailed(2, "start", "cannot see the run directory")) == [StopNode(0)]
    assert run.nodes()[2] is NodeState.LOST
    assert run.feed(NodeGone(0)) == [Conclude()]


def test_a_failure_before_any_node_has_joined_ends_the_run_at_once(run: Run) -> None:
    assert run.feed(NodeFailed(0, "start", "no such interpreter")) == [Conclude()]
    assert run.state is RunState.FAILED


@pytest.mark.parametrize(
    ("event", "left"),
    [(NodeLost(1, "fell silent"), [0, 2]), (NodeFailed(1, "ray", "Ray's raylet exited with 1"), [0, 1, 2])],
    ids=["lost", "failed"],
)
def test_a_failure_under_a_running_driver_ends_the_driver_first_then_the_nodes(
    running: Run, event: NodeLost | NodeFailed, left: list[int]
) -> None:
    assert running.feed(event) == [EndDriver(FAILURE_GRACE_S)]
    assert running.feed(DriverEnded(143, "was ended by SIGTERM")) == [StopNode(node_index) for node_index in left]
    assert running.feed(*(NodeGone(node_index) for node_index in left)) == [Conclude()]
    phase = event.phase if isinstance(event, NodeFailed) else "running"
    assert running.outcome == RunOutcome("failed", 125, event.reason, "n1", 1, phase, lost=isinstance(event, NodeLost))


# -- stop requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [gathering, starting])
def test_a_stop_before_the_driver_runs_stops_the_nodes_and_reports_the_signal(begin: Callable[[], Run]) -> None:
    run = begin()
    joined = [node_index for node_index, state in enumerate(run.nodes()) if state is not NodeState.EXPECTED]
    assert run.feed(STOP) == [StopNode(node_index) for node_index in joined]
    assert run.feed(*(NodeGone(node_index) for node_index in joined)) == [Conclude()]
    assert run.outcome == RunOutcome("stopped", 143, "stopped by alice")
    assert run.state is RunState.STOPPED


@pytest.mark.parametrize(("code", "how"), [(0, "exited with 0"), (3, "exited with 3"), (143, "was ended by SIGTERM")])
def test_a_stop_under_the_driver_gives_it_its_grace_and_reports_its_code(running: Run, code: int, how: str) -> None:
    assert running.feed(STOP) == [EndDriver(30.0)]
    assert running.feed(DriverEnded(code, how)) == STOP_ALL
    assert running.feed(*ALL_GONE) == [Conclude()]
    assert running.outcome == RunOutcome("stopped", code, "stopped by alice")


def test_a_second_stop_changes_nothing(running: Run) -> None:
    running.feed(STOP)
    assert running.feed(replace(STOP, reason="stopped by bob", signal=2)) == []
    assert running.outcome == RunOutcome("stopped", 143, "stopped by alice")


def test_a_stop_while_the_nodes_are_being_stopped_changes_nothing(running: Run) -> None:
    running.feed(DriverEnded(0, "exited with 0"))
    assert running.feed(STOP) == []
    running.feed(*ALL_GONE)
    assert running.outcome == RunOutcome("succeeded", 0, "the driver exited with 0")


# -- the first reason is kept -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "later",
    [NodeFailed(2, "ray", "later"), NodeLost(2, "later"), STOP, DriverEnded(9, "exited with 9"), *arrived(1), Tick()],
    ids=lambda event: type(event).__name__,
)
def test_the_first_recorded_reason_is_kept(running: Run, later: Event) -> None:
    running.feed(NodeLost(1, "first"))
    running.feed(later)
    assert running.outcome == RunOutcome("failed", 125, "first", "n1", 1, "running", lost=True)


def test_a_node_lost_while_finishing_is_not_waited_for_and_does_not_change_the_outcome(running: Run) -> None:
    running.feed(DriverEnded(0, "exited with 0"), NodeGone(0), NodeGone(2))
    assert running.feed(NodeLost(1, "its host went down")) == [Conclude()]
    assert running.outcome == RunOutcome("succeeded", 0, "the driver exited with 0")


def test_a_node_lost_while_the_driver_is_being_ended_is_not_stopped_later(running: Run) -> None:
    running.feed(STOP)
    assert running.feed(NodeLost(2, "its host went down")) == []
    assert running.feed(DriverEnded(143, "was ended by SIGTERM")) == [StopNode(0), StopNode(1)]


def test_a_node_that_arrives_while_the_run_finishes_is_stopped_and_waited_for(run: Run) -> None:
    run.feed(*arrived(0), STOP)
    assert run.feed(*arrived(2)) == [StopNode(2)]
    assert run.feed(NodeGone(0)) == []
    assert run.feed(NodeGone(2)) == [Conclude()]


def test_a_head_that_comes_up_while_the_run_finishes_starts_no_worker(run: Run) -> None:
    run.feed(*arrived(0, 1), STOP)
    assert run.feed(HeadUp(), NodeReady(0)) == []


# -- the end ----------------------------------------------------------------------------------------------------


def test_nodes_that_do_not_confirm_in_time_are_named_and_the_run_ends_without_them(running: Run) -> None:
    running.feed(DriverEnded(0, "exited with 0"), NodeGone(1), at=1000.0)
    assert running.feed(Tick(), at=1000.0 + FINISH_TIMEOUT_S - 0.1) == []
    assert running.feed(Tick(), at=1000.0 + FINISH_TIMEOUT_S) == [Conclude()]
    assert running.state is RunState.SUCCEEDED
    assert running.outcome.end_reason == "the driver exited with 0; n0, n2 did not confirm cleanup"


def test_the_driver_s_grace_is_added_to_the_time_for_finishing(running: Run) -> None:
    running.feed(STOP, at=1000.0)
    assert running.feed(Tick(), at=1000.0 + STOP.grace + FINISH_TIMEOUT_S - 0.1) == []
    assert running.feed(Tick(), at=1000.0 + STOP.grace + FINISH_TIMEOUT_S) == [Conclude()]


def test_a_driver_that_does_not_end_in_time_is_named(running: Run) -> None:
    running.feed(STOP, at=0.0)
    running.feed(Tick(), at=STOP.grace + FINISH_TIMEOUT_S)
    assert running.outcome.end_reason == "stopped by alice; the driver did not end"
    assert running.state is RunState.STOPPED


def test_after_the_end_no_event_has_any_effect() -> None:
    run = Run(RunConfig(["n0", "n1", "n2"], ray=False))
    run.feed(*arrived(0, 1, 2), DriverEnded(0, "exited with 0"), *ALL_GONE)
    assert run.state in ENDED
    before = (run.state, run.outcome, run.nodes())
    events = [*arrived(0, 1, 2), HeadUp(), NodeReady(1), NodeFailed(1, "ray", "x"), NodeLost(0, "x"), STOP, *ALL_GONE]
    assert run.feed(*events, DriverEnded(1, "exited with 1"), Tick(), at=1e9) == []
    assert (run.state, run.outcome, run.nodes()) == before


def test_a_run_without_ray_fails_and_stops_by_the_same_rules() -> None:
    run = Run(replace(PLAN, ray=False))
    run.feed(*arrived(0, 1, 2))
    assert run.feed(NodeLost(2, "connection ended")) == [EndDriver(FAILURE_GRACE_S)]
    assert run.feed(DriverEnded(0, "exited with 0")) == [StopNode(0), StopNode(1)]
    assert run.outcome.exit_code == 125  # the driver's success does not count when a node was lost under it


def test_a_node_that_is_lost_after_the_driver_completed_does_not_discard_its_success() -> None:
    """Between the driver's exit and its report guests may take time to end."""
    run = Run(replace(PLAN, ray=False))
    run.feed(*arrived(0, 1, 2), NodeLost(2, "connection ended"))
    assert run.outcome.state == "failed"
    run.feed(DriverEnded(0, "exited with 0", completed=True), NodeGone(0), NodeGone(1))
    assert run.outcome == RunOutcome("succeeded", 0, "the driver exited with 0")
    assert run.state is RunState.SUCCEEDED


def test_a_stop_request_is_kept_although_the_driver_completed_before_it() -> None:
    run = Run(replace(PLAN, ray=False))
    run.feed(*arrived(0, 1, 2), STOP, DriverEnded(0, "exited with 0", completed=True), *ALL_GONE)
    assert run.outcome == RunOutcome("stopped", 0, "stopped by alice")
