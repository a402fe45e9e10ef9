"""Fixtures: a run of three nodes in the state in which a test begins."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lifecycle.commands import brief

from muster.lifecycle.events import Arrived, Event, HeadUp, NodeReady, RunOutcome
from muster.lifecycle.state_machine import RunConfig, RunStateMachine, Transition
from muster.lifecycle.states import NodeState, RunState

HOSTS = ("n0", "n1", "n2")
PLAN = RunConfig(HOSTS, gather_timeout=100.0, start_timeout=50.0)


def arrived(*node_indexes: int) -> list[Event]:
    return [Arrived(node_index, HOSTS[node_index]) for node_index in node_indexes]


class Run:
    """A state machine and its clock; `feed` returns the commands of all events in brief."""

    def __init__(self, plan: RunConfig = PLAN) -> None:
        self.protocol, self.now = RunStateMachine(plan, 0.0), 0.0
        self.protocol.start(0.0)

    def feed(self, *events: Event, at: float | None = None) -> list[Any]:
        return brief(command for transition in self.transitions(*events, at=at) for command in transition.commands)

    def transitions(self, *events: Event, at: float | None = None) -> list[Transition]:
        self.now = self.now if at is None else at
        return [self.protocol.handle(event, self.now) for event in events]

    @property
    def state(self) -> RunState:
        return self.protocol.state

    @property
    def outcome(self) -> RunOutcome:
        assert self.protocol.outcome is not None
        return self.protocol.outcome

    def nodes(self) -> list[NodeState]:
        return [node.state for node in self.protocol.nodes]


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def starting(run: Run) -> Run:
    """A run in which every node has arrived and the head is not up."""
    run.feed(*arrived(0, 1, 2))
    return run


@pytest.fixture
def running(starting: Run) -> Run:
    starting.feed(HeadUp(), NodeReady(0), NodeReady(1), NodeReady(2))
    return starting
