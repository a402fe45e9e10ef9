"""Invariants of the run's state machine, checked after every event that a Hypothesis machine feeds it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition

from muster.exit_codes import NO_PROGRESS
from muster.lifecycle import roles
from muster.lifecycle.config import EXTERNAL_LEADER
from muster.lifecycle.events import (
    Arrived,
    BeginCycle,
    Conclude,
    DriverEnded,
    EndDriver,
    Event,
    NodeGone,
    NodeLost,
    Progress,
    Rejoin,
    RunOutcome,
    StartDriver,
    StartHead,
    StartWorker,
    StopNode,
)
from muster.lifecycle.roles import Role
from muster.lifecycle.state_machine import FINISH_TIMEOUT_S, RunConfig, RunNode, RunStateMachine
from muster.lifecycle.states import ENDED, NODE_TRANSITIONS, RUN_TRANSITIONS, NodeState, RunState

LONGEST_GRACE_S = 60.0


def _sooner(new: float | None, old: float | None) -> bool:
    return new is not None and old is not None and new < old


class CheckedNodes(list[RunNode]):
    """The nodes; every change of a state must be in the table."""

    def __setitem__(self, node_index: Any, node: Any) -> None:
        before = self[node_index].state
        assert node.state is before or node.state in NODE_TRANSITIONS[before], f"node: {before} -> {node.state}"
        super().__setitem__(node_index, node)


class CheckedStateMachine(RunStateMachine):
    """Every change of the run's state must be in the table."""

    _state: RunState | None = None

    @property
    def state(self) -> RunState:
        assert self._state is not None
        return self._state

    @state.setter
    def state(self, state: RunState) -> None:
        assert self._state is None or state in RUN_TRANSITIONS[self._state], f"run: {self._state} -> {state}"
        self._state = state


def same_but_for_refinements(before: RunOutcome, after: RunOutcome) -> bool:
    """Return whether only the exit code of a stopped driver, or a reason appended to the first, differs."""
    code_refined = before.exit_code == after.exit_code or before.state == "stopped"
    reason_kept = after.end_reason == before.end_reason or after.end_reason.startswith(f"{before.end_reason}; ")
    rest = replace(after, exit_code=before.exit_code, end_reason=before.end_reason)
    return code_refined and reason_kept and rest == before


class Invariants(RuleBasedStateMachine):
    """A checked state machine with its invariants; subclasses add the rules."""

    def start(self, plan: RunConfig, answers: list[bool]) -> None:
        self.now, self.answers = 0.0, answers
        self.protocol = CheckedStateMachine(plan, self.now)
        self.protocol.start(self.now)
        self.protocol.nodes = self.protocol.table.nodes = CheckedNodes(self.protocol.nodes)
        self.commands: Counter[Any] = Counter()  # by cycle; commands to a node also by its number of joins
        self.joined: Counter[int] = Counter()  # number of joins of each node
        self.joined_in: dict[int, int] = {}  # the cycle of its last join
        self.closed: set[int] = set()  # cycles whose round has closed
        self.unanswered: set[int] = set()  # stopped nodes that have not reported since
        self.progressed: set[int] = set()  # cycles with progress
        self.published: dict[int, RunNode] = {}  # the last change of each node

    def feed(self, event: Event) -> None:
        before, state, driving = self.protocol.outcome, self.protocol.state, self.protocol.driver_running
        deadline, current = self.protocol.deadline, getattr(event, "cycle", self.cycle) == self.cycle
        ranked = {node.node_index for node in self.active()}
        transition = self.protocol.handle(event, self.now)
        commands = transition.commands
        changed = [change for change in transition.changes if isinstance(change, RunState)]
        assert self.protocol.state is (changed[-1] if changed else state)
        for node in transition.changes:
            if isinstance(node, RunNode):
                self.published[node.node_index] = node
        if isinstance(event, NodeLost) or (
            isinstance(event, NodeGone) and (current or self.is_excluded(event.node_index))
        ):
            self.unanswered.discard(event.node_index)
        elif isinstance(event, Arrived) and not self.joined[event.node_index]:
            self.joined[event.node_index], self.joined_in[event.node_index] = 1, self.cycle
        if before is not None:
            assert self.protocol.outcome is not None and same_but_for_refinements(before, self.protocol.outcome)
        if state in ENDED or not current or (isinstance(event, DriverEnded) and not driving):
            # A report of an excluded node, of any cycle, may be the last one awaited.
            assert self.protocol.outcome == before and (not commands or isinstance(event, NodeGone))
        # No node known to be unhealthy gets a rank.
        fixed_ranks = self.protocol.config.fixed_ranks and self.cycle == 0
        assert fixed_ranks or all(
            node.unhealthy_reason is None for node in self.active() if node.node_index not in ranked
        )
        if isinstance(event, Progress) and current and state is RunState.RUNNING:
            self.progressed.add(event.cycle)
        if state is RunState.FINISHING:
            assert not any(isinstance(c, (StartDriver, StartHead, StartWorker)) for c in commands)
        if state in (RunState.FINISHING, RunState.RESTARTING):
            # The command is repeated only with a shorter grace.
            assert not any(isinstance(c, EndDriver) for c in commands) or _sooner(self.protocol.deadline, deadline)
        for command in commands:
            self.note(command)

    def note(self, command: Any) -> None:
        self.check_data(command)
        if isinstance(command, Rejoin):
            self.joined[command.node_index] += 1
            self.joined_in[command.node_index] = self.cycle
        elif isinstance(command, (StopNode, StartWorker)):
            self.commands[self.cycle, self.joined[command.node_index], type(command), command.node_index] += 1
        else:
            self.commands[self.cycle, type(command)] += 1
        if isinstance(command, StopNode):
            # The driver ends before the active nodes; excluded nodes and spares may end earlier.
            assert not self.protocol.driver_running or self.protocol.nodes[command.node_index].role is not Role.ACTIVE
            self.unanswered.add(command.node_index)
        if isinstance(command, StartDriver):
            first = [node.state for node in self.active() if not self.joins_late(node)]
            assert first == [NodeState.READY] * self.protocol.round.size

    def check_data(self, command: Any) -> None:
        """Assert that the command carries the state of the run."""
        protocol = self.protocol
        assert getattr(command, "cycle", self.cycle) == self.cycle
        if isinstance(command, StartWorker):
            assert command.rank == protocol.nodes[command.node_index].rank
        elif isinstance(command, StartHead):
            assert command.node_index == protocol.leader
        elif isinstance(command, BeginCycle):
            assert command.reason == protocol.restart_reason
        elif isinstance(command, StopNode):
            assert command.outcome == protocol.outcome and (command.outcome is None or command.deadline is not None)
        elif isinstance(command, Conclude):
            assert command.outcome == protocol.outcome

    @property
    def cycle(self) -> int:
        return self.protocol.cycle

    def active(self) -> list[RunNode]:
        return [node for node in self.protocol.nodes if node.role is Role.ACTIVE]

    def joins_late(self, node: RunNode) -> bool:
        return node.rank is not None and node.rank >= self.protocol.round.size

    def is_excluded(self, node_index: int) -> bool:
        return self.protocol.nodes[node_index].role is Role.EXCLUDED

    # -- invariants ---------------------------------------------------------------------------------------------

    @invariant()
    def head_and_driver_start_at_most_once_in_a_cycle(self) -> None:
        assert self.commands[self.cycle, StartDriver] <= 1 and self.commands[self.cycle, StartHead] <= 1

    @invariant()
    def nodes_get_each_command_once_and_only_after_they_joined(self) -> None:
        for key, times in self.commands.items():
            if len(key) == 4:
                assert times == 1 and key[1] > 0
                assert not (key[2] is StartWorker and key[3] == self.protocol.leader)

    @invariant()
    def no_two_nodes_have_one_rank_and_only_active_ones_have_any(self) -> None:
        node_indexes = [node.rank for node in self.protocol.nodes if node.rank is not None]
        assert len(set(node_indexes)) == len(node_indexes) and set(node_indexes) <= set(
            range(self.protocol.config.active_nodes)
        )
        assert len(node_indexes) == len(self.active())
        if self.protocol.state in (RunState.STARTING, RunState.RUNNING):
            config, size = self.protocol.config, self.protocol.round.size
            assert set(range(size)) <= set(node_indexes) and config.needed_nodes <= size <= config.active_nodes
            may_grow = self.protocol.state is RunState.RUNNING and not config.gang
            assert len(node_indexes) == size or (may_grow and len(node_indexes) > size)

    @invariant()
    def every_segment_is_in_one_domain(self) -> None:
        ranked = sorted((node.rank, node.location.domain) for node in self.active() if node.rank is not None)
        size = self.protocol.config.segment
        if size > 1 and self.protocol.state in (RunState.STARTING, RunState.RUNNING):
            assert all(len({domain for _, domain in ranked[at : at + size]}) == 1 for at in range(0, len(ranked), size))

    @invariant()
    def the_leader_has_rank_0(self) -> None:
        assert all((node.node_index == self.protocol.leader) == (node.rank == 0) for node in self.active())

    @invariant()
    def no_progress_ends_a_run_only_after_so_many_cycles_and_never_one_without_a_budget(self) -> None:
        outcome, plan = self.protocol.outcome, self.protocol.config
        if outcome is not None and outcome.exit_code == NO_PROGRESS:
            before = self.cycle - plan.no_progress_limit + 1
            assert before >= 0 and self.cycle < plan.max_restarts and plan.no_progress_limit
            assert not self.progressed & set(range(before, self.cycle + 1))

    @invariant()
    def sets_and_counts_match_the_nodes(self) -> None:
        protocol, sets, nodes = self.protocol, self.protocol._sets, self.protocol.nodes
        assert protocol.members == {node.node_index for node in nodes if node.joined and node.role is not Role.EXCLUDED}
        assert protocol.excluded == {node.node_index for node in nodes if node.role is Role.EXCLUDED}
        assert sets.pending == sum(node.pending for node in nodes)
        assert sets.awaited == sum(node.awaited for node in nodes)
        assert sets.joined == sum(node.joined for node in nodes)
        assert sets.unready == sum(node.unready for node in nodes)
        assert len(sets.spares) == sum(node.role is Role.SPARE and node.available for node in nodes)
        config, leader = protocol.config, protocol.leader
        assert sets.available.is_sufficient(leader) == roles.available_pool(nodes, config, leader).sufficient
        assert sets.usable.is_sufficient(leader) == roles.usable_pool(nodes, config, leader).sufficient
        possible = roles.possible_pool(nodes, config, EXTERNAL_LEADER).sufficient
        assert sets.possible.is_sufficient(EXTERNAL_LEADER, not sets.unknown_locations) == possible

    @invariant()
    def every_change_of_a_node_is_published(self) -> None:
        for node_index, node in self.published.items():
            assert node == self.protocol.nodes[node_index]

    @invariant()
    def a_round_without_pending_nodes_is_closed_or_ended(self) -> None:
        pending = any(node.pending for node in self.protocol.nodes)
        assert pending or self.protocol.state is not RunState.GATHERING

    @invariant()
    def no_active_node_is_of_another_cycle(self) -> None:
        for node in self.active():
            if node.state in (NodeState.STARTING, NodeState.READY):
                assert self.joined_in[node.node_index] == self.cycle

    @invariant()
    def a_closed_round_never_reopens_and_no_restart_exceeds_the_budget(self) -> None:
        assert self.cycle <= self.protocol.config.max_restarts
        if self.protocol.state is RunState.GATHERING:
            assert self.cycle not in self.closed
        else:
            self.closed.add(self.cycle)

    @invariant()
    def a_run_is_concluded_exactly_when_it_has_ended_and_then_has_an_outcome(self) -> None:
        ended = self.protocol.state in ENDED - {RunState.YIELDED}
        assert sum(times for key, times in self.commands.items() if key[-1] is Conclude) == int(ended)
        if ended:
            assert self.protocol.outcome is not None and self.protocol.outcome.state == self.protocol.state.value

    @invariant()
    def finishing_lasts_only_while_an_answer_is_missing(self) -> None:
        if self.protocol.state is RunState.FINISHING:
            assert self.unanswered or self.protocol.driver_running

    @precondition(lambda self: self.protocol.state is RunState.FINISHING)
    @invariant()
    def finishing_has_a_deadline(self) -> None:
        deadline = self.protocol.deadline
        assert deadline is not None and deadline <= self.now + LONGEST_GRACE_S + FINISH_TIMEOUT_S
