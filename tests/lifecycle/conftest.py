"""Fixtures: a run of three nodes in the state in which a test begins."""

from __future__ import annotations

import pytest

from muster.lifecycle.events import Arrived, Command, Event, HeadUp, NodeReady, RunOutcome
from muster.lifecycle.state_machine import RunConfig, RunStateMachine
from muster.lifecycle.states import NodeState, RunState

HOSTS = ("n0", "n1", "n2")
PLAN = RunConfig(HOSTS, gather_timeout=100.0, start_timeout=50.0)


def arrived(*ranks: int) -> list[Event]:
    return [Arrived(rank, HOSTS[rank]) for rank in ranks]


class Run:
    """A state machine and its clock; `feed` returns the commands of all events."""

    def __init__(self, plan: RunConfig = PLAN) -> None:
        self.protocol, self.now = RunStateMachine(plan, 0.0), 0.0

    def feed(self, *events: Event, at: float | None = None) -> list[Command]:
        self.now = self.now if at is None else at
        return [command for event in events for command in self.protocol.handle(event, self.now)]

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
