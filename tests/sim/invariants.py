"""Invariants, checked at every step; and the events of a run, for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster.election.membership import Membership
from muster.election.quorum_lease import QuorumLease
from muster.lifecycle.config import RunConfig, TermStart
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import NodeState, RunState
from tests.sim.host import DRIVER, Host, SimProcess

if TYPE_CHECKING:
    from tests.sim.agent import Agent

WORKING = (NodeState.STARTING, NodeState.READY)
LEFT_BEHIND = "the run goes on without this node"


class InvariantViolated(Exception):
    """An invariant does not hold."""


class InvariantChecker:
    """Receives all relevant events; raises InvariantViolated when an invariant does not hold."""

    def __init__(self, plan: RunConfig) -> None:
        self.plan = plan
        self.hosts: list[Host] = []
        self.drivers: list[SimProcess] = []  # alive or not, in the order of their starts
        self.terms: dict[int, int] = {}  # the leader of each term
        self.outcomes: dict[int, RunOutcome] = {}
        self.released: dict[int, tuple[list[int], str]] = {}  # by term: the members at its end, and the reason
        self.cycles = 0
        self.living = 0  # agents that have not left
        self.on_note: Callable[[str], None] = lambda what: None  # for faults that wait for an event
        self._welcomed: dict[int, tuple[int, int]] = {}  # term and cycle of each node's last welcome
        self._closed: set[tuple[int, int]] = set()  # rounds, by term and cycle
        self._protocols: dict[int, RunStateMachine] = {}  # by term
        self._served: set[tuple[str, int, int, int]] = set()  # services that were ready: node, term and cycle
        self._seen: dict[int, int] = {}  # number of checked changes, by term
        self._ranked: dict[int, int] = {}  # number of checked role changes, by term

    # -- factories: the real classes --------------------------------------------------------------------------------

    def protocol(self, plan: RunConfig, now: float, term_start: TermStart) -> RunStateMachine:
        return RunStateMachine(plan, now, term_start)

    def quorum(self, membership: Membership) -> QuorumLease:
        return QuorumLease(membership)

    # -- events -------------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        self.on_note(what)

    def left(self) -> None:
        self.living -= 1

    def welcomed(self, rank: int, term: int, cycle: int) -> None:
        self._welcomed[rank] = term, cycle

    def leads(self, rank: int, term: int, protocol: RunStateMachine) -> None:
        """Check that a term has one leader."""
        if term in self.terms:
            raise InvariantViolated(f"n{self.terms[term]} and n{rank} both lead term {term}")
        self.terms[term] = rank
        self._protocols[term], self._seen[term], self._ranked[term] = protocol, 0, -1
        self.note("term")
        self.check(term, protocol)

    def stepped_down(self, rank: int, term: int) -> None:
        self.note("stepped down")

    def concluded(self, term: int, outcome: RunOutcome) -> None:
        self.outcomes[term] = outcome

    def started(self, process: SimProcess) -> None:
        """Check that one driver runs at a time, once in a cycle, within the restart budget."""
        if process.kind != DRIVER:
            return
        self.note("driver")
        for other in self.drivers:
            if not other.ended:
                raise InvariantViolated(f"the driver of {_name(other)} lives when that of {_name(process)} starts")
            if other.cycle >= process.cycle:
                raise InvariantViolated(f"the driver of {_name(process)} starts after that of {_name(other)}")
        if process.cycle > self.plan.max_restarts:
            raise InvariantViolated(f"{_name(process)} is past the budget of {self.plan.max_restarts} restarts")
        self.drivers.append(process)
        self._check_active_nodes(process, self._protocols[process.term])

    def _check_active_nodes(self, driver: SimProcess, protocol: RunStateMachine) -> None:
        """Check that the processes on the active nodes belong to the driver's cycle."""
        for node in protocol.nodes:
            for process in self.hosts[node.rank].processes if node.role is Role.ACTIVE else ():
                if (process.term, process.cycle) != (driver.term, driver.cycle):
                    raise InvariantViolated(f"{_name(process)} runs on an active node of {_name(driver)}")

    def serves(self, rank: int, name: str, process: SimProcess) -> None:
        self._served.add((name, rank, process.term, process.cycle))

    def gate(self, term: int, protocol: RunStateMachine) -> None:
        """Check that each gated service was ready in this cycle on each of its ranks before the driver."""
        active = [node for node in protocol.nodes if node.logical is not None and node.role is Role.ACTIVE]
        for plan in self.plan.services:
            for node in active:
                wanted = node.logical is not None and plan.runs_on(node.logical, len(active))
                if wanted and (plan.name, node.rank, term, protocol.cycle) not in self._served:
                    raise InvariantViolated(
                        f"the driver of cycle {protocol.cycle} starts before {plan.name} on n{node.rank}"
                    )

    def declared_silent(self, leader: Agent, rank: int, term: int) -> None:
        """Check that a node declared silent is already fenced."""
        alive = [process for process in self.hosts[rank].processes if process.term == term]
        if alive and self.plan.failover and rank != leader.rank:
            process = f"{alive[0].kind} of {_name(alive[0])}"
            raise InvariantViolated(f"n{leader.rank} declares n{rank} silent, and its {process} lives")

    # -- state machine ------------------------------------------------------------------------------------------

    def check(self, term: int, protocol: RunStateMachine) -> None:
        """Check the changes since the last call, after every event that a leader handled."""
        if len(protocol.changes) == self._seen[term]:
            return
        moves = protocol.changes[self._seen[term] :]
        self._seen[term] = len(protocol.changes)
        self.cycles = max(self.cycles, protocol.cycle)
        for move in moves:
            if isinstance(move, RunState):
                self._round(term, protocol.cycle, move)
            elif move.role is Role.ACTIVE and move.state in WORKING:
                self._works(term, protocol, move)
        if protocol.role_changes != self._ranked[term]:
            self._ranked[term] = protocol.role_changes
            _ranks(protocol)

    def _round(self, term: int, cycle: int, state: RunState) -> None:
        """Check that a closed round never reopens."""
        if state is RunState.STARTING:
            self.note("round")
            self._closed.add((term, cycle))
        elif state is RunState.GATHERING and (term, cycle) in self._closed:
            raise InvariantViolated(f"the round of cycle {cycle}, term {term}, reopens")

    def _works(self, term: int, protocol: RunStateMachine, node: RunNode) -> None:
        """Check that the node was not welcomed to a later cycle. (The welcome to this one may be on its way.)"""
        at, cycle = self._welcomed.get(node.rank, (term, protocol.cycle))
        if at == term and cycle > protocol.cycle:
            raise InvariantViolated(f"n{node.rank} works in cycle {cycle}, the leader is in cycle {protocol.cycle}")


def _ranks(protocol: RunStateMachine) -> None:
    """Check that ranks are unique, and complete once a round has closed."""
    ranks = [node.logical for node in protocol.nodes if node.role is Role.ACTIVE]
    if len(set(ranks)) < len(ranks):
        raise InvariantViolated(f"two nodes have one rank in cycle {protocol.cycle}: {ranks}")
    needed = protocol.config.active_nodes
    if protocol.state in (RunState.STARTING, RunState.RUNNING) and len(ranks) != needed:
        raise InvariantViolated(f"{len(ranks)} nodes have a rank in cycle {protocol.cycle} instead of {needed}")


def _name(process: SimProcess) -> str:
    return f"term {process.term}, cycle {process.cycle} (n{process.host.rank})"


def check_end(checker: InvariantChecker, agents: Sequence[Agent], now: float) -> None:
    """Check that every agent has left in bounded time, and members of the last leader with its reason."""
    waiting = [agent.rank for agent in agents if agent.alive]
    if waiting:
        raise InvariantViolated(f"nodes {waiting} still wait at {now:g} s")
    if checker.released:
        members, reason = checker.released[max(checker.released)]
        for agent in agents:
            if not agent.crashed and agent.rank in members and agent.reason not in (reason, LEFT_BEHIND):
                raise InvariantViolated(f"n{agent.rank} left with another reason than its leader: {agent.reason}")
