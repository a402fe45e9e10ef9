"""Requests of programs: which nodes the next cycle leaves out, and when no cycle follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.conftest import Run
from tests.lifecycle.four_nodes import (
    CONFIG,
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
)

from muster.exit_codes import INFRASTRUCTURE_FAILED, RESTART_REQUESTED
from muster.lifecycle.config import REPLACE, RunConfig, TermStart
from muster.lifecycle.control import ControlState, restart_requested
from muster.lifecycle.events import (
    DriverEnded,
    Event,
    ExclusionRequested,
    NodeLost,
    RestartForbidden,
    RestartRequested,
    RunOutcome,
    StopNode,
    Yield,
)
from muster.lifecycle.policy import Action, Decision
from muster.lifecycle.roles import RunNode
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState

FAILED = DriverEnded(1, "exited with 1")
AGAIN = replace(RESTART_CONFIG, restart_on_driver_failure=True, ray=False)


def without_ray(config: RunConfig) -> Run:
    """Return a run in which three of four nodes are active and the driver runs."""
    run = Run(replace(config, ray=False))
    run.feed(*arrived(0, 1, 2, 3))
    assert run.state is RunState.RUNNING
    return run


def outcome_after(run: Run, *events: Event) -> RunOutcome:
    run.feed(*events)
    assert run.state is RunState.FINISHING
    return run.outcome


# -- a node is excluded ---------------------------------------------------------------------------------------------


def test_an_exclusion_at_once_begins_the_next_cycle_without_the_node() -> None:
    run = without_ray(AGAIN)
    commands = run.transitions(ExclusionRequested(1, "bad memory"))[0].commands
    assert run.state is RunState.RESTARTING
    assert not [command for command in commands if isinstance(command, StopNode)]  # its ranks get the grace period
    run.feed(DRIVER_TERMINATED)
    assert run.protocol.restart_reason == "n1 is not to be used again: bad memory"
    run.feed(*clean(1, 0, 2, 3))
    assert (run.state, roles(run)) == (RunState.RUNNING, [("active", 0), EXCLUDED, ("active", 1), ("active", 2)])


def test_an_exclusion_at_the_next_restart_changes_nothing_until_the_driver_fails() -> None:
    run = without_ray(AGAIN)
    assert run.feed(ExclusionRequested(1, "it is slow", at_once=False)) == []
    assert (run.state, roles(run)) == (RunState.RUNNING, [*active(0, 1, 2), SPARE])
    run.feed(FAILED, *clean(1, 0, 2, 3))
    assert (run.state, roles(run)[1]) == (RunState.RUNNING, EXCLUDED)


def test_the_policy_of_losses_decides_about_an_exclusion() -> None:
    run = without_ray(replace(CONFIG, max_restarts=2))  # fail
    ended = outcome_after(run, ExclusionRequested(1, "bad memory"))
    assert (ended.exit_code, ended.node, ended.phase) == (INFRASTRUCTURE_FAILED, "n1", "control")
    assert ended.lost  # --requeue-on node-fail applies
    replaced = driving(replace(CONFIG, on_node_loss=REPLACE))
    replaced.feed(ExclusionRequested(1, "bad memory"))
    assert (replaced.state, roles(replaced)) == (
        RunState.RUNNING,
        [("active", 0), EXCLUDED, ("active", 2), ("active", 1)],
    )


def test_without_enough_other_nodes_an_exclusion_ends_the_run_and_says_why() -> None:
    run = without_ray(AGAIN)
    run.feed(NodeLost(3, "the agent of n3 is gone"))  # the spare
    ended = outcome_after(run, ExclusionRequested(1, "bad memory"))
    assert ended.end_reason == ("n1 is not to be used again: bad memory; 2 usable nodes are left, and the job needs 3")


def test_nodes_that_leave_do_not_count_for_the_cycle_after_another_failure() -> None:
    run = without_ray(AGAIN)
    run.feed(ExclusionRequested(1, "it is slow", at_once=False), NodeLost(3, "the agent of n3 is gone"))
    ended = outcome_after(run, FAILED)
    assert "2 usable nodes are left" in ended.end_reason


def test_the_leader_s_own_node_hands_over_when_it_is_excluded() -> None:
    run = without_ray(AGAIN)
    run.feed(ExclusionRequested(0, "bad memory"), DRIVER_TERMINATED)
    assert run.state is RunState.GATHERING
    commands = [
        command
        for one in run.transitions(*clean(1, 0, 1, 2, 3))
        for command in one.commands
        if isinstance(command, Yield)
    ]
    assert (run.state, [command.successor for command in commands]) == (RunState.YIELDED, [1])


def test_the_leader_s_own_node_ends_the_run_where_no_other_node_can_lead() -> None:
    run = Run(RunConfig(["n0", "n1"], ray=False, on_node_loss="restart", max_restarts=2))
    run.feed(*arrived(0, 1))
    ended = outcome_after(run, ExclusionRequested(0, "bad memory"))
    assert "n0, which leads the run, cannot be used" in ended.end_reason


def test_a_spare_is_excluded_while_the_driver_runs() -> None:
    run = without_ray(AGAIN)
    run.feed(ExclusionRequested(3, "bad memory", at_once=False))
    assert (run.state, roles(run)[3]) == (RunState.RUNNING, EXCLUDED)


def test_a_request_of_the_cycle_before_excludes_the_node_as_soon_as_it_is_clean() -> None:
    run = restarted()
    run.feed(ExclusionRequested(2, "bad memory"))
    assert run.state is RunState.GATHERING
    run.feed(*clean(1, 2))
    assert run.state is RunState.FINISHING  # n0 and n3 are too few
    assert "n2 is not to be used again" in run.outcome.end_reason


def test_the_next_leader_leaves_out_the_nodes_that_the_former_one_still_used() -> None:
    start = TermStart(1, 1, 1, frozenset({0}), "n0 is lost", 0, leaving=frozenset({2}))
    machine = RunStateMachine(replace(AGAIN, spares=2), 0.0, start)
    machine.start(0.0)
    for event in arrived(1, 2, 3):
        machine.handle(event, 1.0)
    assert machine.state is RunState.RUNNING
    assert [node.role.value for node in machine.nodes] == ["excluded", "active", "excluded", "active"]


# -- restarts are forbidden -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [FAILED, NodeLost(1, "n1 fell silent")], ids=["driver", "node"])
def test_after_a_ban_a_failure_ends_the_run_with_its_own_reason_and_that_of_the_ban(failure: Event) -> None:
    run = without_ray(AGAIN)
    assert run.feed(RestartForbidden("the data are wrong")) == []
    ended = outcome_after(run, failure)
    assert ended.end_reason.endswith("; no restart: the data are wrong")


def test_a_ban_does_not_end_a_driver_that_succeeds() -> None:
    run = without_ray(AGAIN)
    ended = outcome_after(run, RestartForbidden("the data are wrong"), DriverEnded(0, "exited with 0", completed=True))
    assert (ended.state, ended.exit_code) == ("succeeded", 0)


def test_a_ban_while_a_cycle_is_being_ended_ends_the_run() -> None:
    run = without_ray(AGAIN)
    run.feed(NodeLost(1, "n1 fell silent"))
    assert run.state is RunState.RESTARTING
    ended = outcome_after(run, RestartForbidden("the data are wrong"))
    assert ended.end_reason == "n1 fell silent; no restart: the data are wrong"


def test_the_next_leader_ends_a_run_whose_restarts_are_forbidden() -> None:
    start = TermStart(1, 1, 1, frozenset({0}), "n0 is lost", 0, no_restart="the data are wrong")
    machine = RunStateMachine(AGAIN, 0.0, start)
    machine.start(0.0)
    assert machine.outcome is not None
    assert machine.outcome.end_reason == "n0 is lost; no restart: the data are wrong"


def test_a_ban_of_an_earlier_cycle_is_ignored() -> None:
    run = restarted()
    run.feed(RestartForbidden("the data are wrong", cycle=0))
    assert (run.state, run.protocol.control.no_restart) == (RunState.GATHERING, None)


# -- a restart is requested -----------------------------------------------------------------------------------------


def test_a_requested_restart_begins_a_cycle_also_where_failures_do_not() -> None:
    run = without_ray(replace(AGAIN, restart_on_driver_failure=False))
    run.feed(RestartRequested("the loss is NaN"), DRIVER_TERMINATED)
    assert (run.state, run.protocol.cycle) == (RunState.GATHERING, 1)
    assert run.protocol.restart_reason == "a program has requested a restart: the loss is NaN"


def test_a_requested_restart_beyond_the_budget_ends_the_run_with_its_exit_code() -> None:
    run = without_ray(replace(AGAIN, max_restarts=0))
    ended = outcome_after(run, RestartRequested("the loss is NaN"))
    assert ended.exit_code == RESTART_REQUESTED
    assert ended.end_reason == (
        "a program has requested a restart: the loss is NaN; no restart is allowed (--max-restarts 0)"
    )


def test_a_second_request_while_the_cycle_is_being_ended_has_no_effect() -> None:
    run = without_ray(AGAIN)
    run.feed(RestartRequested("one"))
    assert run.feed(RestartRequested("two")) == [] and run.state is RunState.RESTARTING


# -- the requests that still have an effect -------------------------------------------------------------------------


def test_only_restarts_are_restricted_by_a_ban_and_the_first_reason_is_kept() -> None:
    state = ControlState()
    assert state.restrict(Decision(Action.RESTART)).action is Action.RESTART
    state.forbid("one")
    state.forbid("two")
    assert state.restrict(Decision(Action.RESTART)) == Decision(Action.END, "no restart: one")
    assert state.restrict(Decision(Action.REPLACE, replacement=3)).action is Action.REPLACE


def test_outcomes_of_requests_name_the_reason() -> None:
    state = ControlState()
    state.exclude(1, "one")
    state.exclude(1, "two")
    departure = state.departure(RunNode(1, "n1"))
    assert (departure.end_reason, departure.lost) == ("n1 is not to be used again: one", True)
    assert restart_requested("x").end_reason == "a program has requested a restart: x"
