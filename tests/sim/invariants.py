"""What must never be, looked for at every step; and what happened, for the report."""

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
from tests.sim.host import DRIVER, Host, Running

if TYPE_CHECKING:
    from tests.sim.agent import Agent

WORKING = (NodeState.STARTING, NodeState.READY)
LEFT_BEHIND = "the run goes on without this node"


class Broken(Exception):
    """Something that must never be."""


class Watch:
    """Told of everything that the invariants are about; it raises when one does not hold."""

    def __init__(self, plan: RunConfig) -> None:
        self.plan = plan
        self.hosts: list[Host] = []
        self.drivers: list[Running] = []  # alive or not, in the order of their starts
        self.terms: dict[int, int] = {}  # who led them
        self.outcomes: dict[int, RunOutcome] = {}
        self.dismissed: dict[int, tuple[list[int], str]] = {}  # by term: the members at its end, and the reason
        self.cycles = 0
        self.living = 0  # agents that have not left
        self.on_note: Callable[[str], None] = lambda what: None  # for faults that wait for a moment
        self._welcomed: dict[int, tuple[int, int]] = {}  # the term and cycle that each node was last welcomed to
        self._closed: set[tuple[int, int]] = set()  # rounds, by term and cycle
        self._protocols: dict[int, RunStateMachine] = {}  # by term
        self._served: set[tuple[str, int, int, int]] = set()  # services that were ready: node, term and cycle
        self._seen: dict[int, int] = {}  # moves of each term's protocol that were looked at
        self._ranked: dict[int, int] = {}  # changes of roles, likewise

    # -- what a leader is made of: the real things ------------------------------------------------------------------

    def protocol(self, plan: RunConfig, now: float, term_start: TermStart) -> RunStateMachine:
        return RunStateMachine(plan, now, term_start)

    def quorum(self, membership: Membership) -> QuorumLease:
        return QuorumLease(membership)

    # -- what happens -------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        self.on_note(what)

    def left(self) -> None:
        self.living -= 1

    def welcomed(self, rank: int, term: int, cycle: int) -> None:
        self._welcomed[rank] = term, cycle

    def leads(self, rank: int, term: int, protocol: RunStateMachine) -> None:
        """Never two leads in one term."""
        if term in self.terms:
            raise Broken(f"n{self.terms[term]} and n{rank} both lead term {term}")
        self.terms[term] = rank
        self._protocols[term], self._seen[term], self._ranked[term] = protocol, 0, -1
        self.note("lead")
        self.look(term, protocol)

    def gave_way(self, rank: int, term: int) -> None:
        self.note("gave way")

    def concluded(self, term: int, outcome: RunOutcome) -> None:
        self.outcomes[term] = outcome

    def started(self, process: Running) -> None:
        """Never two drivers; never one more than the budget, nor twice in one cycle."""
        if process.kind != DRIVER:
            return
        self.note("driver")
        for other in self.drivers:
            if not other.ended:
                raise Broken(f"the driver of {_name(other)} lives when that of {_name(process)} starts")
            if other.cycle >= process.cycle:
                raise Broken(f"the driver of {_name(process)} starts after that of {_name(other)}")
        if process.cycle > self.plan.max_restarts:
            raise Broken(f"{_name(process)} is past the budget of {self.plan.max_restarts} restarts")
        self.drivers.append(process)
        self._works_for(process, self._protocols[process.term])

    def _works_for(self, driver: Running, protocol: RunStateMachine) -> None:
        """Never an active node from another cycle: what runs on those that the driver finds is of its own."""
        for node in protocol.nodes:
            for process in self.hosts[node.rank].processes if node.role is Role.ACTIVE else ():
                if (process.term, process.cycle) != (driver.term, driver.cycle):
                    raise Broken(f"{_name(process)} runs on an active node of {_name(driver)}")

    def serves(self, rank: int, name: str, process: Running) -> None:
        self._served.add((name, rank, process.term, process.cycle))

    def gate(self, term: int, protocol: RunStateMachine) -> None:
        """Never a driver before its services: each was ready, in this very cycle, on every rank that is to have it."""
        active = [node for node in protocol.nodes if node.logical is not None and node.role is Role.ACTIVE]
        for plan in self.plan.services:
            for node in active:
                wanted = node.logical is not None and plan.runs_on(node.logical, len(active))
                if wanted and (plan.name, node.rank, term, protocol.cycle) not in self._served:
                    raise Broken(f"the driver of cycle {protocol.cycle} starts before {plan.name} on n{node.rank}")

    def called_silent(self, leader: Agent, rank: int, term: int) -> None:
        """Whoever is called silent is fenced already."""
        alive = [process for process in self.hosts[rank].processes if process.term == term]
        if alive and self.plan.succession and rank != leader.rank:
            raise Broken(f"n{leader.rank} calls n{rank} silent, and its {alive[0].kind} of {_name(alive[0])} lives")

    # -- the protocol -------------------------------------------------------------------------------------------

    def look(self, term: int, protocol: RunStateMachine) -> None:
        """After every event that a leader was fed."""
        if len(protocol.moves) == self._seen[term]:
            return
        moves = protocol.moves[self._seen[term] :]
        self._seen[term] = len(protocol.moves)
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
        """A closed round never reopens."""
        if state is RunState.STARTING:
            self.note("round")
            self._closed.add((term, cycle))
        elif state is RunState.GATHERING and (term, cycle) in self._closed:
            raise Broken(f"the round of cycle {cycle}, term {term}, reopens")

    def _works(self, term: int, protocol: RunStateMachine, node: RunNode) -> None:
        """Nor one that was welcomed to another. (Its welcome may be on its way; a later one cannot have come.)"""
        at, cycle = self._welcomed.get(node.rank, (term, protocol.cycle))
        if at == term and cycle > protocol.cycle:
            raise Broken(f"n{node.rank} works in cycle {cycle}, the leader is in cycle {protocol.cycle}")


def _ranks(protocol: RunStateMachine) -> None:
    """Never two nodes with one rank; all of them once a round has closed."""
    ranks = [node.logical for node in protocol.nodes if node.role is Role.ACTIVE]
    if len(set(ranks)) < len(ranks):
        raise Broken(f"two nodes have one rank in cycle {protocol.cycle}: {ranks}")
    if protocol.state in (RunState.STARTING, RunState.RUNNING) and len(ranks) != protocol.plan.wanted:
        raise Broken(f"{len(ranks)} nodes have a rank in cycle {protocol.cycle}, and {protocol.plan.wanted} should")


def _name(process: Running) -> str:
    return f"term {process.term}, cycle {process.cycle} (n{process.host.rank})"


def judge_end(watch: Watch, agents: Sequence[Agent], now: float) -> None:
    """When all faults are over, everybody leaves in bounded time; who was with the last lead, with its reason."""
    waiting = [agent.rank for agent in agents if agent.alive]
    if waiting:
        raise Broken(f"nodes {waiting} still wait at {now:g} s")
    if watch.dismissed:
        members, reason = watch.dismissed[max(watch.dismissed)]
        for agent in agents:
            if not agent.crashed and agent.rank in members and agent.reason not in (reason, LEFT_BEHIND):
                raise Broken(f"n{agent.rank} left with another reason than its leader: {agent.reason}")
