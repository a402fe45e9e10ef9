"""The acceptance list for jobs with spares and cycles, by its numbers 1 to 16. The other modules cover the details."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.commands import BeginCycle, Conclude, EndDriver, StartWorker, StopNode
from tests.lifecycle.conftest import Run
from tests.lifecycle.four_nodes import (
    CONFIG,
    EXCLUDED,
    HOSTS,
    SPARE,
    active,
    arrived,
    clean,
    driving,
    restarted,
    roles,
    up,
)

from muster.exit_codes import NO_PROGRESS
from muster.lifecycle import events
from muster.lifecycle.config import (
    EXTERNAL_LEADER,
    FAIL,
    FINISH_TIMEOUT_S,
    REPLACE,
    RESTART,
    RunConfig,
    TermStart,
)
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
    Progress,
    RunOutcome,
    StopRequested,
    Tick,
)
from muster.lifecycle.roles import join_refusal
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState
from muster.lifecycle.topology import NodeLocation

RETRY = replace(CONFIG, on_node_loss=RESTART, max_restarts=2, restart_on_driver_failure=True)
CRASHED, HUNG, WELL = (1, "exited with 1"), "no output for 60 s", (0, "exited with 0")
LOST = "connection ended"


def rejoin_all(run: Run) -> None:
    """Report all four nodes clean for the current cycle, and three of them ready."""
    run.feed(*clean(run.protocol.cycle, 0, 1, 2, 3), *up(run.protocol.cycle, 0, 1, 2))
    assert run.state is RunState.RUNNING


# -- 1 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [NodeReady(2), NodeFailed(2, "ray", ""), NodeGone(2), HeadUp(), DriverEnded(*WELL), DriverStalled(""), Progress()],
    ids=lambda record: type(record).__name__,
)
def test_01_a_record_of_an_older_cycle_changes_nothing_in_the_present_one(record: Event) -> None:
    run = restarted()
    before = (run.nodes(), roles(run), run.state, run.protocol.progressed)
    assert run.feed(record) == []
    assert (run.nodes(), roles(run), run.state, run.protocol.progressed) == before


def test_01_a_conflict_within_a_cycle_is_refused_with_the_node_s_name() -> None:
    run = Run(CONFIG)
    run.feed(*arrived(0, 1))
    assert join_refusal(run.protocol.nodes, 1, "n9") == "n9 joined as node 1, but n1 has joined as that node before"
    assert run.feed(Arrived(1, "n9")) == [] and run.protocol.nodes[1].host == "n1"


# -- 2, 3, 4 ----------------------------------------------------------------------------------------------------


def test_02_a_node_that_arrives_after_the_round_closed_is_a_spare_now_and_a_member_of_the_next_cycle() -> None:
    run = Run(RETRY)
    run.feed(*arrived(0, 1, 3), at=0.0)
    run.feed(Tick(), *up(0, 0, 1, 3), at=5.0)
    assert (run.state, run.feed(*arrived(2))) == (RunState.RUNNING, [])
    assert roles(run)[2] == SPARE
    run.feed(DriverEnded(*CRASHED), *clean(1, 0, 1, 2, 3))
    assert roles(run) == [*active(0, 1, 2), SPARE]


def test_03_the_round_closes_although_a_node_died_between_its_arrival_and_its_report() -> None:
    run = Run(CONFIG)
    run.feed(*arrived(0, 1, 2), NodeLost(2, LOST), *arrived(3))
    assert roles(run) == [*active(0, 1), EXCLUDED, *active(2)]
    run.feed(HeadUp(), NodeLost(1, LOST))
    assert run.outcome.end_reason == f"{LOST}; no spare is left"  # and no driver on a lost node


def test_04_nodes_beyond_the_wanted_number_are_spares_and_no_error() -> None:
    run = Run(replace(CONFIG, hosts=[f"n{node_index}" for node_index in range(9)], spares=6))
    run.feed(*(Arrived(node_index, f"n{node_index}") for node_index in range(9)))
    assert roles(run) == [*active(0, 1, 2), *[SPARE] * 6]
    assert run.protocol.outcome is None


# -- 5 ----------------------------------------------------------------------------------------------------------


def test_05_a_node_that_failed_its_check_at_the_start_is_given_no_rank_in_any_cycle() -> None:
    run = Run(RETRY)
    run.feed(NodeFailed(1, "start", "--health-check failed"), *arrived(0, 2, 3), *up(0, 0, 2, 3))
    run.feed(DriverEnded(*CRASHED), *clean(1, 0, 2, 3))
    assert roles(run) == [*active(0), EXCLUDED, *active(1, 2)]


def test_05_an_unhealthy_spare_is_not_promoted_and_one_that_has_recovered_is() -> None:
    run = driving(replace(CONFIG, on_node_loss=REPLACE))
    run.feed(Health(3, False, "a GPU fell off the bus"))
    assert run.protocol.nodes[3].unhealthy_reason == "a GPU fell off the bus"
    run.feed(Health(3, True))
    assert run.feed(NodeLost(1, LOST)) == [StartWorker(3)]
    sick = driving(replace(CONFIG, on_node_loss=REPLACE))
    sick.feed(Health(3, False, "a GPU fell off the bus"), NodeLost(1, LOST))
    assert sick.outcome.end_reason == f"{LOST}; no spare is left"


def test_05_an_unhealthy_spare_counts_for_no_new_cycle() -> None:
    run = driving(RETRY)
    run.feed(Health(3, False, "it is too warm"), NodeLost(1, LOST))
    why = f"{LOST}; 2 usable nodes are left, and the job needs 3; n3 is unhealthy: it is too warm"
    assert run.outcome.end_reason == why


def test_05_a_node_that_falls_ill_while_a_cycle_gathers_gets_no_rank_in_it() -> None:
    run = driving(RETRY)
    run.feed(DriverEnded(*CRASHED), *clean(1, 0, 1, 2), Health(1, False, "it is too warm"), *clean(1, 3))
    assert roles(run) == [*active(0), SPARE, *active(1, 2)]


def test_05_when_no_healthy_node_can_still_arrive_the_run_ends_at_once() -> None:
    run = restarted()
    run.feed(*clean(1, 0, 2, 3)[:2], Health(2, False, "it is too warm"))
    assert run.protocol.outcome is None  # n3 may still arrive
    run.feed(*clean(1, 3))
    assert run.outcome.end_reason.startswith("2 usable nodes are left, and the job needs 3; n2 is unhealthy")


# -- 6, 7, 8 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comes", "node_indexes"),
    [(14.9, [*active(0, 1, 2), SPARE]), (15.0, [*active(0, 1), SPARE, *active(2)])],
    ids=["inside", "after"],
)
def test_06_inside_the_last_call_a_spare_does_not_take_the_place_of_a_slow_member_after_it_it_does(
    comes: float, node_indexes: list[tuple[str, int | None]]
) -> None:
    run = driving(RETRY)
    run.feed(DriverEnded(*CRASHED), *clean(1, 0, 1, 3), at=10.0)
    run.feed(Tick(), *clean(1, 2), at=comes)
    assert roles(run) == node_indexes


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (9, "failed")])
def test_07_when_the_job_has_ended_spares_are_released_with_all_nodes_and_the_first_reason_is_kept(
    code: int, state: str
) -> None:
    run = driving(CONFIG)
    assert StopNode(3) in run.feed(DriverEnded(code, f"exited with {code}"))
    run.feed(
        NodeLost(2, LOST),
        StopRequested("stopped by alice", 15, 30.0),
        *(NodeGone(node_index) for node_index in range(4)),
    )
    assert run.outcome == RunOutcome(state, code, f"the driver exited with {code}")


def test_07_a_spare_that_arrives_after_the_end_began_is_released_at_once() -> None:
    run = Run(CONFIG)
    run.feed(*arrived(0, 1, 2), at=0.0)
    run.feed(Tick(), *up(0, 0, 1, 2), DriverEnded(*WELL), at=5.0)
    assert run.feed(*arrived(3)) == [StopNode(3)]


def test_08_too_few_nodes_by_the_deadline_are_a_timeout_that_names_the_missing() -> None:
    run = Run(CONFIG)
    run.feed(*arrived(0, 2))
    run.feed(Tick(), at=100.0)
    assert run.outcome.end_reason.startswith("n1, n3 did not arrive within 100 s; 2 of the 3 nodes")


# -- 9 ----------------------------------------------------------------------------------------------------------

RACKS = ["r2", "r10", "r2", "r9", "r10", "r9", "r2"]


def racked(order: list[int], **fields: int) -> list[int]:
    """Return the active nodes by logical rank after seven nodes in three racks arrive in this order."""
    hosts = [f"n{node_index}" for node_index in range(len(RACKS))]
    run = Run(replace(RunConfig(hosts, ray=False, topology=True), **fields))  # type: ignore[arg-type]
    run.feed(
        *(
            Arrived(
                node_index,
                hosts[node_index],
                NodeLocation(RACKS[node_index], f"{RACKS[node_index]}.{hosts[node_index]}"),
            )
            for node_index in order
        )
    )
    ranked = [(node.rank, node.node_index) for node in run.protocol.nodes if node.rank is not None]
    return [node_index for _, node_index in sorted(ranked)]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [4, 0, 6, 2, 5, 1, 3]])
def test_09_ranks_follow_the_topology_and_not_the_order_of_arrival(order: list[int]) -> None:
    assert racked(order) == [0, 2, 6, 3, 5, 1, 4]
    assert racked(order, spares=2) == [0, 2, 6, 3, 5]


def test_09_whole_segments_of_a_domain_stay_together() -> None:
    assert racked([6, 5, 4, 3, 2, 1, 0], spares=1, segment=2) == [0, 2, 3, 5, 1, 4]
    assert racked([6, 5, 4, 3, 2, 1, 0], spares=4, segment=3) == [0, 2, 6]


# -- 10, 11 -----------------------------------------------------------------------------------------------------


def test_10_a_coordinator_that_is_no_node_closes_rounds_without_taking_part() -> None:
    protocol = RunStateMachine(
        replace(CONFIG, ray=False, on_node_loss=RESTART, max_restarts=1), 0.0, TermStart(leader=EXTERNAL_LEADER)
    )
    commands = [command for event in arrived(3, 2, 1, 0) for command in protocol.handle(event, 0.0).commands]
    assert commands == [events.StartDriver(cycle=0)]
    assert [node.rank for node in protocol.nodes] == [0, 1, 2, None]
    ended = protocol.handle(NodeLost(0, LOST), 1.0)  # like any other node
    assert ended.commands == (events.EndDriver(CONFIG.restart_grace, cycle=0),)
    protocol.handle(DriverEnded(143, "was ended by SIGTERM"), 1.0)
    commands = [command for event in clean(1, 1, 2, 3) for command in protocol.handle(event, 1.0).commands]
    assert commands[-1] == events.StartDriver(cycle=1)
    assert [node.rank for node in protocol.nodes] == [None, 0, 1, 2]


@pytest.mark.parametrize(
    ("node_index", "host", "why"),
    [
        (1, "n1", "n1 joined as node 1, but n1 has joined as that node before"),
        (2, "n1", "n1 joined as node 2, which should be n2; n1 is node 1"),
        (7, "n7", "n7 joined as node 7, but this run has only the nodes 0 to 3"),
        (2, "n2", None),
        (2, "n2.cluster", None),  # another name for the same host is accepted
    ],
)
def test_11_a_duplicate_host_or_a_duplicate_rank_is_refused(node_index: int, host: str, why: str | None) -> None:
    run = Run(CONFIG)
    run.feed(*arrived(0, 1))
    assert join_refusal(run.protocol.nodes, node_index, host) == why
    assert run.protocol.table.join_refusal(node_index, host) == why


def test_11_an_excluded_node_is_not_refused_as_a_duplicate() -> None:
    run = Run(CONFIG)
    run.feed(*arrived(0), NodeFailed(1, "start", "its agent ended early"))
    assert join_refusal(run.protocol.nodes, 1, "n1") is None
    assert run.feed(Arrived(1, "n1")) == [] and roles(run)[1] == EXCLUDED


# -- 12, 13 -----------------------------------------------------------------------------------------------------


def test_12_a_hang_a_crash_and_a_clean_exit_under_a_budget_of_two_end_with_0() -> None:
    run = driving(replace(RETRY, no_progress_limit=3))
    run.feed(DriverStalled(HUNG), DriverEnded(134, "was killed by SIGABRT"))
    rejoin_all(run)
    run.feed(DriverEnded(*CRASHED, cycle=1))
    rejoin_all(run)
    run.feed(DriverEnded(*WELL, cycle=2))
    assert run.feed(*clean(2, 0, 1, 2, 3)) == [Conclude()]
    assert run.outcome.exit_code == 0


@pytest.mark.parametrize(("cause", "code"), [(DriverEnded(*CRASHED), 1), (DriverStalled(HUNG), 125)])
def test_12_a_hang_or_a_crash_without_a_budget_is_the_end(cause: Event, code: int) -> None:
    run = driving(replace(RETRY, max_restarts=0))
    run.feed(cause)
    assert run.outcome.exit_code == code


@pytest.mark.parametrize("code", [0, 143, 137], ids=["well", "by-the-signal", "killed-after-the-grace"])
def test_13_a_stopped_run_ends_with_the_code_with_which_its_driver_left(code: int) -> None:
    run = driving(CONFIG)
    assert run.feed(StopRequested("stopped by alice", 15, 30.0)) == [EndDriver(30.0)]
    run.feed(DriverEnded(code, "left"), *(NodeGone(node_index) for node_index in range(4)))
    assert (run.outcome.state, run.outcome.exit_code) == ("stopped", code)


def test_13_a_driver_that_outlives_its_grace_cannot_hold_the_run() -> None:
    run = driving(CONFIG)
    run.feed(StopRequested("stopped by alice", 15, 30.0), at=0.0)
    assert run.feed(Tick(), at=30.0 + FINISH_TIMEOUT_S) == [Conclude()]
    assert run.outcome.exit_code == 143


# -- 14 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [FAIL, REPLACE, RESTART])
def test_14_the_death_of_a_spare_restarts_nothing(policy: str) -> None:
    run = driving(replace(RETRY, on_node_loss=policy))
    assert run.feed(NodeLost(3, LOST)) == []
    assert (run.state, run.protocol.cycle) == (RunState.RUNNING, 0)


def test_14_the_death_of_an_active_node_promotes_a_spare_and_the_end_is_clean() -> None:
    run = driving(replace(CONFIG, on_node_loss=REPLACE))
    assert run.feed(NodeLost(1, LOST)) == [StartWorker(3)]
    run.feed(NodeReady(3), DriverEnded(*WELL))
    assert run.feed(*clean(0, 0, 2, 3)) == [Conclude()]
    assert run.outcome == RunOutcome("succeeded", 0, "the driver exited with 0")


# -- 15 ---------------------------------------------------------------------------------------------------------


def crash_on(run: Run, progress: list[bool]) -> None:
    """Fail the driver in consecutive cycles, with or without progress, until the run ends."""
    for cycle, forward in enumerate(progress):
        run.feed(*([Progress(cycle)] if forward else []), DriverEnded(*CRASHED, cycle=cycle))
        if run.protocol.outcome is not None:
            return
        rejoin_all(run)


def test_15_no_restart_once_the_budget_is_spent_and_the_driver_s_exit_code_is_kept() -> None:
    run = driving(replace(RETRY, max_restarts=2, no_progress_limit=3))
    crash_on(run, [False] * 9)
    assert (run.protocol.cycle, run.outcome.exit_code) == (2, 1)
    assert run.outcome.end_reason.endswith("restart 2 was the last (--max-restarts 2)")


def test_15_no_restart_after_several_consecutive_cycles_without_progress_with_a_specific_exit_code() -> None:
    run = driving(replace(RETRY, max_restarts=9, no_progress_limit=3))
    crash_on(run, [False] * 9)
    assert (run.protocol.cycle, run.outcome.exit_code) == (2, NO_PROGRESS)
    assert run.outcome.end_reason.endswith("3 cycles in a row without progress (--no-progress-limit 3)")


@pytest.mark.parametrize(("limit", "cycles"), [(2, 5), (0, 9)], ids=["limited", "off"])
def test_15_progress_begins_the_count_anew(limit: int, cycles: int) -> None:
    run = driving(replace(RETRY, max_restarts=9, no_progress_limit=limit))
    crash_on(run, [False, True, False, True, False, False, False, False, False, False])
    assert run.protocol.cycle == cycles


def test_15_cycles_that_lost_nodes_without_progress_count_too() -> None:
    run = driving(replace(RETRY, max_restarts=9, no_progress_limit=2))
    run.feed(DriverEnded(*CRASHED))
    rejoin_all(run)
    run.feed(NodeLost(1, LOST))
    assert (run.outcome.exit_code, run.outcome.node) == (NO_PROGRESS, "n1")


def test_15_a_later_leader_counts_on() -> None:
    term_start = TermStart(term=1, leader=1, cycle=2, excluded=frozenset({0}), without_progress=2)
    protocol = RunStateMachine(replace(RETRY, ray=False, max_restarts=9, no_progress_limit=3), 0.0, term_start)
    for event in (*arrived(1, 2, 3), DriverEnded(*CRASHED, cycle=2)):
        protocol.handle(event, 0.0)
    assert protocol.outcome is not None and protocol.outcome.exit_code == NO_PROGRESS


# -- 16 ---------------------------------------------------------------------------------------------------------


def test_16_on_success_the_driver_ends_then_every_node_confirms_the_end_then_the_leader_leaves() -> None:
    run = driving(CONFIG)
    assert run.feed(DriverEnded(*WELL)) == [StopNode(node_index) for node_index in range(4)]
    assert run.feed(*clean(0, 0, 1, 2)) == []  # the spare has not confirmed the end
    assert run.state is RunState.FINISHING
    assert run.feed(*clean(0, 3)) == [Conclude()]


def test_16_between_cycles_no_end_is_announced() -> None:
    run = driving(RETRY)
    commands = run.feed(DriverEnded(*CRASHED))
    assert commands == [BeginCycle(), *(StopNode(node_index) for node_index in range(len(HOSTS)))]
    assert run.protocol.outcome is None
