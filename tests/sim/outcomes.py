"""Whether the recorded end of a run is the true one, nodes were clean, and exit codes say how the run ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.election.leader_silence import LEADERLESS_AFTER_S
from muster.lifecycle import events as m
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import DEPARTED, NodeState, RunState
from tests.sim.files import Recorded, RunDirectory

if TYPE_CHECKING:
    from tests.sim.agent import Agent
    from tests.sim.host import Host


class InvariantViolated(Exception):
    """An invariant does not hold."""


class TermRecord:
    """The events of one term that decide how the run may end."""

    def __init__(self, term: int, machine: RunStateMachine, zero_exits: set[tuple[int, int]]) -> None:
        self._term, self._machine, self._zero_exits = term, machine, zero_exits
        self.over = False
        self._succeeded = False  # the driver exited with 0 while nothing else had happened
        self._stopped = False
        self._late = False  # the deadline had passed when the current event was handled

    def note(self, event: m.Event, now: float) -> None:
        """Record an event before the state machine handles it."""
        machine = self._machine
        self._late = machine.deadline is not None and now >= machine.deadline
        if isinstance(event, m.DriverEnded) and event.cycle == machine.cycle and machine.driver_running:
            self._succeeded = self._succeeded or (event.code == 0 and machine.state is RunState.RUNNING)
        self._stopped = self._stopped or (isinstance(event, m.StopRequested) and machine.outcome is None)

    def check_conclusion(self, outcome: m.RunOutcome, hosts: Sequence[Host]) -> None:
        """Check that the outcome is what happened, and that the nodes are clean or their time is over."""
        self.over = True
        if self._succeeded and (outcome.state, outcome.exit_code) != ("succeeded", 0):
            raise InvariantViolated(f"the driver of term {self._term} succeeded, recorded is: {outcome}")
        if outcome.state == "succeeded" and not any(term == self._term for term, _ in self._zero_exits):
            raise InvariantViolated(f"no driver of term {self._term} succeeded, recorded is: {outcome}")
        if (outcome.state == "stopped") and not self._stopped:
            raise InvariantViolated(f"nobody stopped term {self._term}, recorded is: {outcome}")
        if outcome.state == "failed" and outcome.exit_code == 0:
            raise InvariantViolated(f"term {self._term} failed with exit code 0: {outcome}")
        self._check_clean(hosts)

    def _check_clean(self, hosts: Sequence[Host]) -> None:
        for node in self._machine.nodes:
            if node.state not in DEPARTED and node.state is not NodeState.EXPECTED and not self._late:
                raise InvariantViolated(f"term {self._term} ends and waits no longer for n{node.node_index}")
            left = [one for one in hosts[node.node_index].processes if one.term == self._term]
            if node.state is NodeState.GONE and left:
                raise InvariantViolated(f"term {self._term} ends, and {left[0].kind} lives on n{node.node_index}")


class OutcomeChecker:
    """Checks what is recorded as the end of the run, and the exit codes of the agents."""

    def __init__(self) -> None:
        self.zero_exits: set[tuple[int, int]] = set()  # term and cycle of drivers that exited with 0
        self._terms: dict[int, TermRecord] = {}
        self._acting: dict[int, Agent] = {}  # leaders by term

    def begin(self, term: int, machine: RunStateMachine) -> TermRecord:
        self._terms[term] = TermRecord(term, machine, self.zero_exits)
        return self._terms[term]

    def leads(self, term: int, agent: Agent) -> None:
        self._acting[term] = agent

    def steps_down(self, term: int) -> None:
        self._acting.pop(term, None)

    def check_leaderless(self, node_index: int, files: RunDirectory, now: float) -> None:
        """Check that a run which is recorded as leaderless has no leader. A slow filesystem can hide one."""
        if files.slow_until > now - 2 * LEADERLESS_AFTER_S or files.outcome is not None:
            return
        for term, agent in self._acting.items():
            if agent.alive and not agent.host.expired and agent.troubled_at < now - 2 * LEADERLESS_AFTER_S:
                raise InvariantViolated(f"n{node_index} ends the run, and n{agent.node_index} leads term {term}")

    def check_exit(self, node_index: int, code: int, known: Recorded | None) -> None:
        """Check that only an agent that knows of a success exits with 0."""
        if code == 0 and known is None:
            raise InvariantViolated(f"n{node_index} exits with 0 and knows of no outcome")
        if known is not None and known.code != code:
            raise InvariantViolated(f"n{node_index} exits with {code}, the run with {known.code}")

    def check_exits(self, agents: Sequence[Agent]) -> None:
        """Check that agents exit with 0 only after a driver that did."""
        wrong = [agent.node_index for agent in agents if agent.code == 0]
        if wrong and not self.zero_exits:
            raise InvariantViolated(f"nodes {wrong} exit with 0, and no driver did")
