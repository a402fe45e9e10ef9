"""The numbered acceptance list for jobs with spares and cycles, numbers 12 to 16: how cycles and runs end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.conftest import Run
from tests.lifecycle.test_cycles import clean, up
from tests.lifecycle.test_spares import HOSTS, PLAN, come, driving

from muster.exit_codes import NO_PROGRESS
from muster.lifecycle.config import FAIL, FINISH_TIMEOUT_S, REPLACE, RESTART, TermStart
from muster.lifecycle.events import (
    BeginCycle,
    Conclude,
    DriverEnded,
    DriverStalled,
    EndDriver,
    Event,
    NodeGone,
    NodeLost,
    NodeReady,
    Progress,
    RunOutcome,
    StartWorker,
    StopNode,
    StopRequested,
    Tick,
)
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState

RETRY = replace(PLAN, on_node_loss=RESTART, max_restarts=2, restart_on_driver_failure=True)
CRASHED, HUNG, WELL = (1, "exited with 1"), "no output for 60 s", (0, "exited with 0")
LOST = "connection ended"


def everybody_again(run: Run) -> None:
    """Report all four nodes clean for the current cycle, and three of them ready."""
    run.feed(*clean(run.protocol.cycle, 0, 1, 2, 3), *up(run.protocol.cycle, 0, 1, 2))
    assert run.state is RunState.RUNNING


# -- 12, 13 -----------------------------------------------------------------------------------------------------


def test_12_a_hang_a_crash_and_a_clean_exit_under_a_budget_of_two_end_with_0() -> None:
    run = driving(replace(RETRY, no_progress_limit=3))
    run.feed(DriverStalled(HUNG), DriverEnded(134, "was killed by SIGABRT"))
    everybody_again(run)
    run.feed(DriverEnded(*CRASHED, cycle=1))
    everybody_again(run)
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
    run = driving(PLAN)
    assert run.feed(StopRequested("stopped by alice", 15, 30.0)) == [EndDriver(30.0)]
    run.feed(DriverEnded(code, "left"), *(NodeGone(rank) for rank in range(4)))
    assert (run.outcome.state, run.outcome.exit_code) == ("stopped", code)


def test_13_a_driver_that_outlives_its_grace_cannot_hold_the_run() -> None:
    run = driving(PLAN)
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
    run = driving(replace(PLAN, on_node_loss=REPLACE))
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
        everybody_again(run)


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
    everybody_again(run)
    run.feed(NodeLost(1, LOST))
    assert (run.outcome.exit_code, run.outcome.node) == (NO_PROGRESS, "n1")


def test_15_a_later_leader_counts_on() -> None:
    term_start = TermStart(term=1, leader=1, cycle=2, excluded=frozenset({0}), without_progress=2)
    protocol = RunStateMachine(replace(RETRY, ray=False, max_restarts=9, no_progress_limit=3), 0.0, term_start)
    for event in (*come(1, 2, 3), DriverEnded(*CRASHED, cycle=2)):
        protocol.handle(event, 0.0)
    assert protocol.outcome is not None and protocol.outcome.exit_code == NO_PROGRESS


# -- 16 ---------------------------------------------------------------------------------------------------------


def test_16_on_success_the_driver_ends_then_every_node_confirms_the_end_then_the_leader_leaves() -> None:
    run = driving(PLAN)
    assert run.feed(DriverEnded(*WELL)) == [StopNode(rank) for rank in range(4)]
    assert run.feed(*clean(0, 0, 1, 2)) == []  # the spare has not confirmed the end
    assert run.state is RunState.FINISHING
    assert run.feed(*clean(0, 3)) == [Conclude()]


def test_16_between_cycles_no_end_is_announced() -> None:
    run = driving(RETRY)
    commands = run.feed(DriverEnded(*CRASHED))
    assert commands == [BeginCycle(), *(StopNode(rank) for rank in range(len(HOSTS)))]
    assert run.protocol.outcome is None
