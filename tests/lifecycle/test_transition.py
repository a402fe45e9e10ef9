"""A transition contains everything that follows from an event, and its commands all data for their execution."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lifecycle.conftest import Run
from tests.lifecycle.four_nodes import CONFIG, RESTART_CONFIG, arrived, driving, restarted, up

from muster.lifecycle.config import FINISH_TIMEOUT_S, REPLACE, TermStart
from muster.lifecycle.events import (
    BeginCycle,
    Conclude,
    DriverEnded,
    NodeGone,
    NodeLost,
    NodeReady,
    StartDriver,
    StartHead,
    StartWorker,
    StopNode,
    Tick,
)
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.state_machine import RunStateMachine, Transition
from muster.lifecycle.states import NodeState, RunState

LOST = TermStart(term=1, leader=1, cycle=1, excluded=frozenset({0}), reason="n0 is lost", lost=0)


def test_the_first_leader_starts_with_gathering() -> None:
    assert RunStateMachine(CONFIG, 0.0).start(0.0) == Transition(changes=(RunState.GATHERING,))


def test_a_takeover_that_may_continue_gathers_for_the_next_cycle() -> None:
    machine = RunStateMachine(RESTART_CONFIG, 0.0, LOST)
    assert machine.start(0.0).changes == (RunState.GATHERING,)
    assert (machine.outcome, machine.cycle, machine.excluded) == (None, 1, {0})


def test_a_takeover_that_may_not_continue_only_ends_the_run() -> None:
    machine = RunStateMachine(replace(RESTART_CONFIG, max_restarts=0), 0.0, LOST)
    assert machine.start(7.0).changes == (RunState.GATHERING, RunState.FINISHING)
    assert machine.outcome is not None and machine.deadline == 7.0 + FINISH_TIMEOUT_S
    assert machine.outcome.end_reason == "n0 is lost; no restart is allowed (--max-restarts 0)"
    joined = machine.handle(arrived(1)[0], 8.0)
    assert joined.commands == (StopNode(1, 1, machine.outcome, machine.deadline),)


def test_an_event_without_effect_has_an_empty_transition() -> None:
    assert driving(CONFIG).transitions(Tick(), NodeReady(1)) == [Transition(), Transition()]


def test_changes_are_in_the_order_in_which_they_happened() -> None:
    run = driving(replace(CONFIG, on_node_loss=REPLACE))
    (transition,) = run.transitions(NodeLost(1, "connection ended"))
    assert transition.changes == (
        RunNode(1, "n1", NodeState.LOST, Role.ACTIVE, 1),
        RunNode(1, "n1", NodeState.LOST, Role.EXCLUDED),
        RunNode(3, "n3", NodeState.ARRIVED, Role.ACTIVE, 1),
        RunNode(3, "n3", NodeState.STARTING, Role.ACTIVE, 1),
    )
    assert transition.commands == (StartWorker(3, rank=1, cycle=0, replaces=1),)


def test_commands_of_a_later_cycle_carry_its_number() -> None:
    run = driving(RESTART_CONFIG)
    run.feed(NodeLost(1, "the agent of n1 is gone"))
    (began,) = run.transitions(DriverEnded(143, "was ended by SIGTERM"))
    assert began.commands[0] == BeginCycle(1, "the agent of n1 is gone")
    assert began.commands[1] == StopNode(0, 1, None, run.protocol.deadline)
    run = restarted()
    rejoined = run.transitions(*(NodeGone(node_index, 1) for node_index in (0, 2, 3)))
    assert StartHead(0, 1) in rejoined[-1].commands
    started = run.transitions(*up(1, 0, 2, 3))
    assert started[0].commands == (StartWorker(2, 1, 1), StartWorker(3, 2, 1))
    assert started[-1].commands == (StartDriver(1),)


def test_a_node_that_was_stopped_before_the_same_event_ended_the_run_gets_the_outcome_too() -> None:
    run = Run(CONFIG)
    run.feed(*arrived(0, 1, 2, 3), *up(0, 0))
    (transition,) = run.transitions(Tick(), at=50.0)  # two nodes are late: a spare replaces only the first
    stops = [command for command in transition.commands if isinstance(command, StopNode)]
    assert [command.node_index for command in stops] == [1, 0, 2, 3]
    assert {(command.outcome, command.deadline) for command in stops} == {(run.outcome, run.protocol.deadline)}


def test_the_conclusion_carries_the_outcome() -> None:
    run = driving(CONFIG)
    run.feed(DriverEnded(0, "exited with 0"), *(NodeGone(node_index) for node_index in range(3)))
    (transition,) = run.transitions(NodeGone(3))
    assert transition.commands == (Conclude(run.outcome),)
    assert transition.changes[-1] is RunState.SUCCEEDED


HANDED_OVER = replace(LOST, handed_over=True, handovers=1)


@pytest.mark.parametrize("on_node_loss", ["fail", "replace", "restart"])
def test_a_leader_that_another_has_handed_over_to_begins_the_next_cycle_without_a_restart(on_node_loss: str) -> None:
    machine = RunStateMachine(replace(CONFIG, on_node_loss=on_node_loss, max_restarts=0), 0.0, HANDED_OVER)
    assert machine.start(0.0).changes == (RunState.GATHERING,)
    for event in arrived(1, 2, 3):
        machine.handle(event, 1.0)
    assert (machine.outcome, machine.cycle, machine.state) == (None, 1, RunState.STARTING)
    assert {node.node_index: node.rank for node in machine.nodes} == {0: None, 1: 0, 2: 1, 3: 2}


def test_a_leader_that_another_has_handed_over_to_ends_the_run_if_too_few_nodes_are_left() -> None:
    start = replace(HANDED_OVER, excluded=frozenset({0, 3}))
    machine = RunStateMachine(CONFIG, 0.0, start)
    machine.start(0.0)
    assert machine.outcome is not None
    assert machine.outcome.end_reason == "n0 is lost; 2 usable nodes are left, and the job needs 3"


def test_an_excluded_leader_gets_no_rank() -> None:
    machine = RunStateMachine(replace(CONFIG, ray=False), 0.0, replace(HANDED_OVER, excluded=frozenset({0, 1})))
    machine.start(0.0)
    for event in arrived(1, 2, 3):
        machine.handle(event, 1.0)
    assert machine.nodes[1].rank is None and machine.nodes[1].role is Role.EXCLUDED


def test_a_cycle_that_was_handed_over_leaves_the_whole_budget() -> None:
    config = replace(RESTART_CONFIG, ray=False, restart_on_driver_failure=True, max_restarts=1)
    machine = RunStateMachine(config, 0.0, HANDED_OVER)
    machine.start(0.0)
    for event in arrived(1, 2, 3):
        machine.handle(event, 1.0)
    machine.handle(DriverEnded(1, "exited with 1", 1), 2.0)
    assert (machine.outcome, machine.cycle) == (None, 2)
