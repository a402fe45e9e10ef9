"""Invariants, checked at every step; and the events of a run, for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from muster.election.leader_lease import LeaderLease
from muster.election.membership import Membership
from muster.election.timing import FENCE_S
from muster.lifecycle.config import RunConfig, TermStart
from muster.lifecycle.events import Event, NodeFailed, NodeGone, RunOutcome
from muster.lifecycle.policy import RAY_PHASE
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import CONNECTED, DEPARTED, NodeState, RunState
from muster.lifecycle.transition import Change
from tests.sim.control import ControlChecker
from tests.sim.host import DRIVER, GANG, Host, SimProcess
from tests.sim.network import ConnectionEnd
from tests.sim.outcomes import InvariantViolated, OutcomeChecker

if TYPE_CHECKING:
    from tests.sim.agent import Agent

WORKING = (NodeState.STARTING, NodeState.READY)
LEFT_BEHIND = "the run goes on without this node"
UNKNOWN_END = "it is unknown whether the run goes on"
GAVE_UP = "gave up"  # has lost the leader that was ending the run
RECOVERY_S = 2 * FENCE_S  # in which the effects of a short fault have passed


class InvariantChecker:
    """Receives all relevant events; raises InvariantViolated when an invariant does not hold."""

    def __init__(self, plan: RunConfig) -> None:
        self.plan = plan
        self.hosts: list[Host] = []
        self.drivers: list[SimProcess] = []  # alive or not, in the order of their starts
        self.terms: dict[int, int] = {}  # the leader of each term
        self.outcomes, self.control = OutcomeChecker(), ControlChecker()
        self.conclusions: dict[int, RunOutcome] = {}  # by term
        self.authorized_memberships: dict[int, Membership] = {}  # by term: that of its last driver
        self.released: dict[int, tuple[list[int], str]] = {}  # by term: the members at its end, and the reason
        self.cycles = 0
        self.early = 0  # drivers that started before the fences of earlier terms had passed
        self.living = 0  # agents that have not left
        self.on_note: Callable[[str], None] = lambda what: None  # for faults that wait for an event
        self._welcomed: dict[int, tuple[int, int]] = {}  # term and cycle of each node's last welcome
        self._closed: set[tuple[int, int]] = set()  # rounds, by term and cycle
        self._protocols: dict[int, RunStateMachine] = {}  # by term
        self._served: set[tuple[str, int, int, int]] = set()  # services that were ready: node, term and cycle
        self.handed_over: dict[int, int] = {}  # leaders whose own node failed before the driver, and their terms
        self.progressed: set[tuple[int, int]] = set()  # terms and cycles
        self._first_cycles: dict[int, int] = {}  # by term
        self._ranked: dict[int, int] = {}  # number of checked role changes, by term

    # -- factories: the real classes --------------------------------------------------------------------------------

    def protocol(self, plan: RunConfig, now: float, term_start: TermStart) -> RunStateMachine:
        return RunStateMachine(plan, now, term_start)

    def lease(self, protocol: RunStateMachine, membership: Membership, in_use: frozenset[int] | None) -> LeaderLease:
        return LeaderLease(protocol, membership, in_use)

    # -- events -------------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        self.on_note(what)

    def left(self) -> None:
        self.living -= 1

    def welcomed(self, node_index: int, term: int, cycle: int) -> None:
        self._welcomed[node_index] = term, cycle

    def leads(self, node_index: int, term: int, protocol: RunStateMachine) -> None:
        """Check that a term has one leader."""
        if term in self.terms:
            raise InvariantViolated(f"n{self.terms[term]} and n{node_index} both lead term {term}")
        for earlier, membership in self.authorized_memberships.items():
            self._check_inherited(node_index, protocol, earlier, membership)
        self.terms[term] = node_index
        self._protocols[term], self._ranked[term] = protocol, -1
        self._first_cycles[term] = protocol.cycle
        self.note("term")

    def _check_inherited(self, leader: int, protocol: RunStateMachine, term: int, membership: Membership) -> None:
        """Check that a new leader knows of each earlier driver, and of the nodes excluded before it."""
        if protocol.cycle <= membership.cycle:
            raise InvariantViolated(f"n{leader} begins with cycle {protocol.cycle} again, which term {term} had begun")
        forgotten = membership.excluded - protocol.excluded
        if forgotten:
            raise InvariantViolated(f"n{leader} does not know that term {term} has excluded {sorted(forgotten)}")

    def authorized(self, membership: Membership) -> None:
        self.authorized_memberships[membership.term] = membership

    def claims(self, node_index: int, known: Membership | None) -> None:
        """Check that a candidate is not excluded, as far as it knows."""
        if known is not None and node_index in known.excluded:
            raise InvariantViolated(f"n{node_index} claims a term and is excluded")

    def lost(self, leader: Agent, end: ConnectionEnd) -> None:
        """Check that a lost node was not healthy: stopped, out of reach, or gone."""
        agent, node_index, now = leader.env.network.processes[end.node_index], end.node_index, leader.env.world.now
        since = now - RECOVERY_S
        troubled = max(leader.env.network.troubled(leader.node_index, node_index), leader.troubled_at)
        if agent.alive and not agent.stopped and not leader.stopped and max(troubled, agent.troubled_at) < since:
            raise InvariantViolated(f"n{leader.node_index} declares n{node_index} lost, which is healthy")

    def stepped_down(self, node_index: int, term: int) -> None:
        self.note("stepped down")

    def concluded(self, term: int, outcome: RunOutcome) -> None:
        """Check that no later leader continues the run. A stop applies to its run, whichever leader handles it."""
        if max(self.terms) > term and outcome.state != "stopped":
            later = f"n{self.terms[max(self.terms)]} leads term {max(self.terms)}"
            raise InvariantViolated(f"the leader of term {term} records an outcome, and {later}: {outcome.end_reason}")
        self.conclusions[term] = outcome

    def started(self, process: SimProcess) -> None:
        """Check that one driver runs at a time, once in a cycle, within the restart budget."""
        if process.kind == GANG:
            self._check_gang(process)
        if process.kind != DRIVER:
            return
        self.note("driver")
        for other in self.drivers:
            if other.runs:
                raise InvariantViolated(f"the driver of {_name(other)} lives when that of {_name(process)} starts")
            if other.cycle >= process.cycle:
                raise InvariantViolated(f"the driver of {_name(process)} starts after that of {_name(other)}")
        if process.cycle - len(self.handed_over) > self.plan.max_restarts:
            raise InvariantViolated(f"{_name(process)} is past the budget of {self.plan.max_restarts} restarts")
        self.drivers.append(process)
        self._check_progress(process)
        self._check_active_nodes(process, self._protocols[process.term])
        self.control.driver_starts(process, self._protocols[process.term])

    def continued(self, process: SimProcess) -> None:
        """Check that a stopped process goes on only if no later one has taken its place."""
        if process.kind == DRIVER and process in self.drivers:
            later = self.drivers[self.drivers.index(process) + 1 :]
            if later:
                raise InvariantViolated(f"the driver of {_name(process)} goes on after that of {_name(later[0])} began")
        if process.kind == GANG:
            self._check_gang(process)

    def starts_early(self, term: int) -> None:
        """Check that a driver that starts before the fences have passed finds no process of an earlier term."""
        self.early += 1
        for host in self.hosts:
            for process in host.processes:
                if process.term < term and process.runs:
                    raise InvariantViolated(
                        f"the {process.kind} of {_name(process)} lives when the driver of term {term} starts early"
                    )

    def _check_gang(self, process: SimProcess) -> None:
        """Check that no process of an earlier gang is left on any node, lost ones included."""
        for host in self.hosts:
            for other in host.processes:
                if other.kind == GANG and other.runs and (other.term, other.cycle) != (process.term, process.cycle):
                    raise InvariantViolated(f"the gang of {_name(other)} lives when that of {_name(process)} starts")

    def _check_progress(self, driver: SimProcess) -> None:
        """Check that no cycle follows too many cycles of the same term that made no progress."""
        limit, cycle = self.plan.no_progress_limit, driver.cycle
        first = self._first_cycles[driver.term]
        earlier = {(driver.term, before) for before in range(cycle - limit, cycle)}
        if limit and cycle - limit >= first and not earlier & self.progressed:
            raise InvariantViolated(f"{_name(driver)} starts after {limit} cycles without progress")

    def _check_active_nodes(self, driver: SimProcess, protocol: RunStateMachine) -> None:
        """Check that the processes on the active nodes belong to the driver's cycle."""
        for node in protocol.nodes:
            for process in self.hosts[node.node_index].processes if node.role is Role.ACTIVE else ():
                if (process.term, process.cycle) != (driver.term, driver.cycle):
                    raise InvariantViolated(f"{_name(process)} runs on an active node of {_name(driver)}")

    def serves(self, node_index: int, name: str, process: SimProcess) -> None:
        self._served.add((name, node_index, process.term, process.cycle))

    def gate(self, term: int, protocol: RunStateMachine) -> None:
        """Check that each gated service was ready in this cycle on each of its ranks before the driver.

        Nodes that join late get their ranks when the driver starts.
        """
        size = protocol.round.size
        active = [node for node in protocol.nodes if node.rank is not None and node.rank < size]
        for plan in self.plan.services:
            for node in active:
                wanted = node.rank is not None and plan.runs_on(node.rank, size)
                if wanted and (plan.name, node.node_index, term, protocol.cycle) not in self._served:
                    raise InvariantViolated(
                        f"the driver of cycle {protocol.cycle} starts before {plan.name} on n{node.node_index}"
                    )

    def declared_silent(self, leader: Agent, node_index: int, term: int) -> None:
        """Check that a node declared silent is already fenced."""
        alive = [process for process in self.hosts[node_index].processes if process.term == term and process.runs]
        if alive and self.plan.member_leases and node_index != leader.node_index:
            process = f"{alive[0].kind} of {_name(alive[0])}"
            raise InvariantViolated(f"n{leader.node_index} declares n{node_index} silent, and its {process} lives")

    # -- state machine ------------------------------------------------------------------------------------------

    def check(self, term: int, protocol: RunStateMachine, moves: Sequence[Change]) -> None:
        """Check the changes of one event that a leader handled."""
        if not moves:
            return
        self.cycles = max(self.cycles, protocol.cycle)
        for move in moves:
            if isinstance(move, RunState):
                self._round(term, protocol, move)
            elif move.role is Role.ACTIVE and move.state in WORKING:
                self._works(term, protocol, move)
                if move.unhealthy_reason is not None:
                    raise InvariantViolated(f"n{move.node_index} works and is unhealthy")
                if term > self.handed_over.get(move.node_index, term):
                    raise InvariantViolated(f"n{move.node_index} works and has failed as the leader")
        if protocol.table.role_changes != self._ranked[term]:
            self._ranked[term] = protocol.table.role_changes
            _ranks(protocol)

    def is_stale(self, event: Event, protocol: RunStateMachine) -> bool:
        """Return whether the event must have no effect: it belongs to another cycle, and its node is not excluded."""
        if getattr(event, "cycle", protocol.cycle) == protocol.cycle:
            return False
        return not isinstance(event, NodeGone) or protocol.nodes[event.node_index].role is not Role.EXCLUDED

    def check_excluded(self, event: Event, before: RunState, node: RunNode | None, protocol: RunStateMachine) -> None:
        """Check that a run which goes on has excluded a node that was lost or has failed.

        `before` and `node`: the states of the run and of that node before the event. The leader's own node goes with
        its term. A failure of Ray in a cycle that is being ended is no failure of the node.
        """
        if node is None or node.state in DEPARTED or node.state is NodeState.STOPPING:
            return
        ray = isinstance(event, NodeFailed) and event.phase == RAY_PHASE and before is RunState.RESTARTING
        goes_on = protocol.outcome is None and protocol.state is not RunState.YIELDED
        changed = protocol.nodes[node.node_index]
        handled = goes_on and not ray and changed != node and node.node_index != protocol.leader
        if handled and changed.role is not Role.EXCLUDED:
            raise InvariantViolated(f"n{node.node_index} is lost or has failed, and the run may use it again")

    def _lives(self, driver: SimProcess, term: int) -> bool:
        return not driver.ended and driver.term == term

    def _round(self, term: int, protocol: RunStateMachine, state: RunState) -> None:
        """Check that a closed round never reopens, and that it opens and closes in order."""
        cycle = protocol.cycle
        if state is RunState.STARTING:
            self.note("round")
            self._closed.add((term, cycle))
            _check_half(protocol)
        elif state is RunState.GATHERING and (running := [one for one in self.drivers if self._lives(one, term)]):
            raise InvariantViolated(f"cycle {cycle} begins, and the driver of {_name(running[0])} lives")
        elif state is RunState.GATHERING and (term, cycle) in self._closed:
            raise InvariantViolated(f"the round of cycle {cycle}, term {term}, reopens")

    def _works(self, term: int, protocol: RunStateMachine, node: RunNode) -> None:
        """Check that the node was not welcomed to a later cycle. (The welcome to this one may be on its way.)"""
        at, cycle = self._welcomed.get(node.node_index, (term, protocol.cycle))
        if at == term and cycle > protocol.cycle:
            raise InvariantViolated(
                f"n{node.node_index} works in cycle {cycle}, the leader is in cycle {protocol.cycle}"
            )


def _ranks(protocol: RunStateMachine) -> None:
    """Check that ranks are unique, and complete once a round has closed."""
    ranks = [node.rank for node in protocol.nodes if node.role is Role.ACTIVE]
    if len(set(ranks)) < len(ranks):
        raise InvariantViolated(f"two nodes have one rank in cycle {protocol.cycle}: {ranks}")
    if protocol.state in (RunState.STARTING, RunState.RUNNING):
        _check_complete(protocol, set(ranks))
    if protocol.state in (RunState.STARTING, RunState.RUNNING) and protocol.config.segment > 1:
        _check_segments(protocol)


def _check_complete(protocol: RunStateMachine, ranks: set[int | None]) -> None:
    """Check that the cycle has the ranks of its round, which are enough, and others only as far as it can grow."""
    config, first = protocol.config, set(range(protocol.round.size))
    if not first <= ranks <= set(range(config.active_nodes)):
        raise InvariantViolated(f"the nodes have the ranks {ranks} in cycle {protocol.cycle} instead of {first}")
    if len(first) < config.needed_nodes:
        raise InvariantViolated(f"cycle {protocol.cycle} has {len(first)} nodes, and the job needs more")
    if ranks != first and (config.gang or protocol.state is RunState.STARTING):
        raise InvariantViolated(f"the nodes of cycle {protocol.cycle} have the ranks {ranks}, and it cannot grow")


def _check_segments(protocol: RunStateMachine) -> None:
    """Check that each segment of consecutive ranks is in one domain."""
    segment = protocol.config.segment
    domains = {node.rank: node.location.domain for node in protocol.nodes if node.rank is not None}
    for first in range(0, len(domains), segment):
        if len({domains[rank] for rank in range(first, first + segment)}) > 1:
            raise InvariantViolated(f"the ranks from {first} on are in several domains: {domains}")


def _check_half(protocol: RunStateMachine) -> None:
    """Check that a round closes only if no majority of the nodes can elect another leader."""
    eligible = [node for node in protocol.nodes if node.eligible]
    here = sum(node.state in CONNECTED for node in eligible)
    pending = sum(node.state in (NodeState.EXPECTED, NodeState.STOPPING) for node in eligible)
    if protocol.config.failover and here < pending:
        raise InvariantViolated(f"cycle {protocol.cycle} starts with {here} nodes, and {pending} could elect a leader")


def _name(process: SimProcess) -> str:
    return f"term {process.term}, cycle {process.cycle} (n{process.host.node_index})"


def check_end(checker: InvariantChecker, agents: Sequence[Agent], now: float) -> None:
    """Check that every agent has left in bounded time, and members of the last leader with its reason."""
    waiting = [agent.node_index for agent in agents if agent.alive]
    if waiting:
        raise InvariantViolated(f"nodes {waiting} still wait at {now:g} s")
    checker.outcomes.check_exits(agents)
    if checker.released:
        members, reason = checker.released[max(checker.released)]
        for agent in agents:
            if (
                not agent.crashed
                and agent.node_index in members
                and agent.reason not in (reason, LEFT_BEHIND, UNKNOWN_END, GAVE_UP)
            ):
                raise InvariantViolated(f"n{agent.node_index} left with another reason than its leader: {agent.reason}")
