"""Runs over several cycles: what begins a new cycle, which nodes are in it, and when there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.commands import (
    BeginCycle,
    Conclude,
    EndDriver,
    Rejoin,
    StartDriver,
    StartHead,
    StartWorker,
    StopNode,
    Yield,
)
from tests.lifecycle.conftest import Run
from tests.lifecycle.four_nodes import (
    DRIVER_TERMINATED,
    EXCLUDED,
    RESTART_CONFIG,
    SPARE,
    active,
    arrived,
    clean,
    driving,
    restarted,
    roles,
    up,
)

from muster.lifecycle.config import FINISH_TIMEOUT_S, RunConfig
from muster.lifecycle.events import (
    Arrived,
    DriverEnded,
    DriverStalled,
    Event,
    HeadUp,
    Health,
    NodeFailed,
    NodeGone,
    NodeLost,
    NodeReady,
    RunOutcome,
    StopRequested,
    Tick,
)
from muster.lifecycle.states import RunState
from muster.lifecycle.topology import NodeLocation

STOP = StopRequested("stopped by alice", signal=15, grace=30.0)


# -- a new cycle ------------------------------------------------------------------------------------------------


def test_a_lost_node_ends_the_driver_then_every_node_is_cleaned_and_rejoins() -> None:
    run = driving(RESTART_CONFIG)
    assert run.feed(NodeLost(1, "the agent of n1 is gone")) == [EndDriver(30.0)]
    assert run.state is RunState.RESTARTING
    assert run.feed(DRIVER_TERMINATED) == [BeginCycle(), StopNode(0), StopNode(2), StopNode(3)]
    assert (run.state, run.protocol.cycle) == (RunState.GATHERING, 1)
    assert run.feed(*clean(1, 2, 3)) == [Rejoin(2), Rejoin(3)]
    assert run.feed(*clean(1, 0)) == [Rejoin(0), StartHead()]
    assert roles(run) == [*active(0), EXCLUDED, *active(1, 2)]
    assert run.feed(*up(1, 0, 2, 3)) == [StartWorker(2), StartWorker(3), StartDriver()]
    assert run.protocol.restart_reason == "the agent of n1 is gone"
    run.feed(DriverEnded(0, "exited with 0", cycle=1))
    assert run.feed(*clean(1, 0, 2, 3)) == [Conclude()]
    assert run.outcome == RunOutcome("succeeded", 0, "the driver exited with 0")


def test_a_new_head_waits_for_the_round_since_older_raylets_may_still_search_for_one() -> None:
    run = restarted()
    assert run.feed(*clean(1, 0, 2)) == [Rejoin(0), Rejoin(2)]
    assert run.feed(*clean(1, 3)) == [Rejoin(3), StartHead()]


def five_nodes() -> Run:
    """Three of n0..n4 are active (no Ray), n3 and n4 are spares."""
    run = Run(replace(RESTART_CONFIG, hosts=[f"n{node_index}" for node_index in range(5)], spares=2, ray=False))
    run.feed(*(Arrived(node_index, f"n{node_index}") for node_index in range(5)))
    assert run.state is RunState.RUNNING
    return run


def test_a_node_slow_to_get_clean_is_not_waited_for_beyond_the_last_call_and_is_a_spare_then() -> None:
    run = five_nodes()
    run.feed(NodeLost(1, "gone"), DRIVER_TERMINATED, *clean(1, 0, 3, 4), at=10.0)
    assert run.state is RunState.GATHERING
    assert run.feed(Tick(), at=15.0) == [StartDriver()]
    assert run.feed(*clean(1, 2)) == [Rejoin(2)]
    assert roles(run) == [*active(0), EXCLUDED, SPARE, *active(1, 2)]


def test_nodes_that_do_not_get_clean_are_named_at_the_deadline() -> None:
    run = restarted()
    run.feed(*clean(1, 0))
    run.feed(Tick(), at=100.0)
    assert "n2, n3 did not finish cleanup for the next cycle within 100 s" in run.outcome.end_reason


@pytest.mark.parametrize(
    "event",
    [NodeReady(2), NodeFailed(2, "ray", "old"), NodeGone(2), HeadUp(), DRIVER_TERMINATED, DriverStalled("old")],
    ids=str,
)
def test_events_of_an_older_cycle_change_nothing(event: Event) -> None:
    run = restarted()
    before = (run.nodes(), roles(run), run.state)
    assert run.feed(event) == []
    assert (run.nodes(), roles(run), run.state) == before


def test_a_node_still_being_cleaned_when_the_next_cycle_begins_is_stopped_again() -> None:
    run = five_nodes()
    run.protocol.config = replace(run.protocol.config, restart_on_driver_failure=True)
    run.feed(DriverEnded(1, "exited with 1"), *clean(1, 0, 3, 4, 1), at=10.0)
    run.feed(Tick(), at=15.0)
    assert run.feed(DriverEnded(1, "exited with 1", cycle=1))[1:] == [StopNode(node_index) for node_index in range(5)]
    assert run.feed(*clean(1, 2)) == []  # its report of the previous cycle
    assert run.feed(*clean(2, 2)) == [Rejoin(2)]


def test_a_node_lost_while_the_driver_is_being_ended_is_left_out_or_is_the_end() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "first"))
    run.feed(NodeLost(2, "second"))
    assert run.outcome.end_reason == "second; 2 usable nodes are left, and the job needs 3"
    assert run.feed(DRIVER_TERMINATED) == [StopNode(0), StopNode(3)]


def test_a_failure_of_ray_while_its_cluster_is_being_ended_does_not_exclude_the_node() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "first"))
    assert run.feed(NodeFailed(2, "ray", "Ray's raylet exited with 1"), NodeFailed(0, "ray", "so did the head's")) == []
    assert run.feed(DRIVER_TERMINATED) == [BeginCycle(), StopNode(0), StopNode(2), StopNode(3)]


def test_a_failed_head_on_a_living_leader_begins_a_new_cycle_with_the_same_nodes() -> None:
    run = driving(RESTART_CONFIG)
    assert run.feed(NodeFailed(0, "ray", "Ray's gcs_server exited with 1")) == [EndDriver(30.0)]
    run.feed(DRIVER_TERMINATED, *clean(1, 0, 1, 2, 3))
    assert roles(run) == [*active(0, 1, 2), SPARE]


@pytest.mark.parametrize(
    "event", [NodeLost(0, "the leader is gone"), NodeFailed(0, "running", "the leader failed")], ids=["lost", "defect"]
)
def test_a_lost_leader_or_a_defect_in_it_is_the_end(event: Event) -> None:
    run = driving(RESTART_CONFIG)
    run.feed(event)
    assert run.outcome.node_index == 0 and run.outcome.exit_code == 125


def test_a_stop_while_the_driver_is_being_ended_ends_the_run_and_leaves_it_no_more_time() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "gone"))
    assert run.feed(STOP) == []
    assert run.feed(DRIVER_TERMINATED) == [StopNode(0), StopNode(2), StopNode(3)]
    assert run.feed(*clean(0, 0, 2, 3)) == [Conclude()]
    assert run.outcome == RunOutcome("stopped", 143, "stopped by alice")


def test_a_stop_while_nodes_are_being_cleaned_waits_for_them() -> None:
    run = restarted()
    run.feed(*clean(1, 0))
    assert run.feed(STOP) == [StopNode(0)]
    assert run.feed(*clean(1, 0, 2)) == []
    assert run.feed(*clean(1, 3)) == [Conclude()]


def test_a_driver_that_does_not_end_has_no_successor() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "gone"), at=0.0)
    assert run.feed(Tick(), at=30.0 + FINISH_TIMEOUT_S) == [Conclude()]
    assert run.outcome.end_reason == "gone; the driver did not end"
    assert run.protocol.cycle == 0


# -- the budget -------------------------------------------------------------------------------------------------


def test_without_a_budget_a_lost_node_ends_the_run_with_its_name() -> None:
    run = driving(replace(RESTART_CONFIG, max_restarts=0))
    run.feed(NodeLost(1, "gone"))
    why = "gone; no restart is allowed (--max-restarts 0)"
    assert run.outcome == RunOutcome("failed", 125, why, "n1", 1, "running", lost=True)


def test_too_few_nodes_for_another_cycle_end_the_run() -> None:
    run = restarted()
    run.feed(*clean(1, 0, 2, 3), *up(1, 0, 2, 3))
    run.feed(NodeLost(3, "gone too"))
    assert run.outcome.end_reason == "gone too; 2 usable nodes are left, and the job needs 3"
    assert run.outcome.node == "n3"


def test_a_failed_driver_is_the_end_unless_restarts_are_wanted_for_it() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(DriverEnded(7, "exited with 7"))
    assert run.outcome == RunOutcome("failed", 7, "the driver exited with 7")


@pytest.mark.parametrize(("restart", "on_failure", "begins"), [(True, False, True), (False, True, False)])
def test_a_job_may_want_another_reaction_to_a_hang_than_to_a_failure(
    restart: bool, on_failure: bool, begins: bool
) -> None:
    run = driving(replace(RESTART_CONFIG, restart_on_driver_failure=on_failure))
    run.feed(DriverStalled("the run hangs", restart=restart))
    assert (run.state is RunState.RESTARTING) is begins
    if not begins:
        assert (run.outcome.phase, run.outcome.end_reason) == ("stalled", "the run hangs")


def test_a_stall_a_crash_and_a_clean_exit_under_a_budget_of_two_end_with_0() -> None:
    run = driving(replace(RESTART_CONFIG, restart_on_driver_failure=True))
    run.feed(DriverStalled("no output for 60 s"))
    run.feed(DriverEnded(134, "was killed by SIGABRT"), *clean(1, 0, 1, 2, 3), *up(1, 0, 1, 2))
    run.feed(DriverEnded(1, "exited with 1", cycle=1), *clean(2, 0, 1, 2, 3), *up(2, 0, 1, 2))
    assert (run.state, run.protocol.cycle) == (RunState.RUNNING, 2)
    run.feed(DriverEnded(0, "exited with 0", cycle=2), *clean(2, 0, 1, 2, 3))
    assert run.outcome == RunOutcome("succeeded", 0, "the driver exited with 0")


def test_the_driver_s_exit_code_is_kept_when_the_budget_is_spent() -> None:
    run = driving(replace(RESTART_CONFIG, restart_on_driver_failure=True, max_restarts=1))
    run.feed(DriverEnded(1, "exited with 1"), *clean(1, 0, 1, 2, 3), *up(1, 0, 1, 2))
    run.feed(DriverEnded(1, "exited with 1", cycle=1))
    assert run.outcome == RunOutcome("failed", 1, "the driver exited with 1; restart 1 was the last (--max-restarts 1)")


def test_a_driver_that_is_ended_for_a_restart_is_no_success_whatever_its_code() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "gone"), DriverEnded(0, "exited with 0"))
    assert (run.state, run.protocol.cycle) == (RunState.GATHERING, 1)


def test_a_driver_that_had_completed_before_the_loss_is_a_success() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "gone"))
    assert run.state is RunState.RESTARTING
    run.feed(DriverEnded(0, "exited with 0", completed=True), *clean(0, 0, 2, 3))
    assert run.outcome == RunOutcome("succeeded", 0, "the driver exited with 0")
    assert run.state is RunState.SUCCEEDED


def test_a_driver_that_had_failed_by_itself_before_the_loss_is_run_again() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "gone"), DriverEnded(1, "exited with 1", completed=True))
    assert (run.state, run.protocol.cycle) == (RunState.GATHERING, 1)


def test_a_run_without_spares_restarts_its_driver_on_the_same_nodes() -> None:
    run = Run(replace(RESTART_CONFIG, spares=0, restart_on_driver_failure=True, ray=False))
    run.feed(*arrived(0, 1, 2, 3), DriverEnded(1, "exited with 1"))
    assert run.feed(*clean(1, 0, 1, 2, 3))[-1] == StartDriver()


def test_a_leader_that_is_late_with_others_yields_once() -> None:
    """The next leader handles the other late nodes."""
    hosts = ["n0", "n1", "n2", "n3"]
    run = Run(RunConfig(hosts, start_timeout=50.0, spares=1, on_node_loss="restart", max_restarts=1))
    run.feed(*(Arrived(node_index, hosts[node_index]) for node_index in range(4)))
    commands = run.feed(Tick(), at=60.0)
    assert [type(command) for command in commands] == [Yield] and run.state is RunState.YIELDED


FIVE = RunConfig([f"n{node_index}" for node_index in range(5)], spares=1, on_node_loss="restart", max_restarts=1)


def test_a_leader_that_cannot_lead_steps_down_once_the_others_can_elect_another() -> None:
    run = Run(FIVE)
    run.feed(Arrived(0, "n0"), NodeFailed(0, "ray", "Ray cannot be imported"), Arrived(1, "n1"))
    assert run.feed(Arrived(2, "n2")) == [] and run.state is RunState.GATHERING
    assert run.feed(Arrived(3, "n3")) == [Yield("Ray cannot be imported", 1)]
    assert run.state is RunState.YIELDED


def test_a_leader_that_cannot_leader_ends_the_run_when_too_few_others_come() -> None:
    run = Run(FIVE)
    run.feed(Arrived(0, "n0"), NodeFailed(0, "ray", "Ray cannot be imported"), Arrived(1, "n1"))
    run.feed(Tick(), at=FIVE.gather_timeout + 1)
    assert run.protocol.outcome is not None
    assert "Ray cannot be imported; too few other nodes joined" in run.protocol.outcome.end_reason


def test_a_leader_that_cannot_leader_ends_the_run_when_another_node_is_lost_that_would_be_needed() -> None:
    run = Run(FIVE)
    run.feed(Arrived(0, "n0"), NodeFailed(0, "ray", "Ray cannot be imported"), Arrived(1, "n1"))
    run.feed(NodeLost(1, "its connection ended"))
    assert run.protocol.outcome is not None and run.protocol.outcome.node_index == 0


@pytest.mark.parametrize(
    ("on_node_loss", "max_restarts"), [("fail", 0), ("replace", 0), ("replace", 1), ("restart", 0)]
)
def test_a_leader_whose_node_fails_before_the_driver_hands_over_to_a_spare_under_every_policy(
    on_node_loss: str, max_restarts: int
) -> None:
    run = Run(replace(FIVE, on_node_loss=on_node_loss, max_restarts=max_restarts))
    run.feed(*(Arrived(node_index, f"n{node_index}") for node_index in range(5)))
    assert run.feed(NodeFailed(0, "health", "its check failed")) == [Yield("its check failed", 1)]


def test_a_leader_without_failover_waits_for_one_node_that_can_lead_instead() -> None:
    run = Run(replace(FIVE, on_node_loss="fail"))
    run.feed(Arrived(0, "n0"))
    assert run.feed(NodeFailed(0, "ray", "Ray cannot be imported")) == []
    assert run.feed(Arrived(3, "n3")) == [Yield("Ray cannot be imported", 3)]


def test_a_leader_without_a_spare_ends_the_run_with_the_failure_only() -> None:
    run = Run(RunConfig(["n0", "n1", "n2"]))
    run.feed(Arrived(0, "n0"), NodeFailed(0, "ray", "Ray cannot be imported"))
    assert run.protocol.outcome is not None and run.protocol.outcome.end_reason == "Ray cannot be imported"


def test_the_node_that_leads_next_has_a_whole_segment_around_it() -> None:
    run = Run(RunConfig([f"n{index}" for index in range(6)], spares=2, topology=True, segment=2))
    for node_index, domain in enumerate(("a", "a", "b", "c", "c", "b")):
        run.feed(Arrived(node_index, f"n{node_index}", NodeLocation(domain, "")))
    assert run.feed(NodeFailed(0, "ray", "Ray cannot be imported")) == [Yield("Ray cannot be imported", 2)]


def test_nodes_that_all_fail_their_checks_before_the_next_cycle_end_the_run() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "gone"), *(Health(node_index, False, "too hot") for node_index in (0, 2, 3)))
    run.feed(DriverEnded(143, "was ended by SIGTERM"))
    assert run.state is RunState.FINISHING


def test_a_leader_that_fails_after_its_round_does_not_wait_for_nodes_that_have_not_come() -> None:
    run = Run(RunConfig(["n0", "n1", "n2"], spares=2, last_call=5.0))
    run.feed(Arrived(0, "n0"))
    run.feed(Tick(), at=6.0)
    assert run.state is RunState.STARTING
    run.feed(NodeFailed(0, "ray", "Ray cannot be imported"), at=7.0)
    assert run.outcome.end_reason == "Ray cannot be imported; too few other nodes joined to elect another leader"
