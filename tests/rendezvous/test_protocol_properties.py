"""The protocol under any order of events, sensible or not: what it never does, and that it always comes to an end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster.rendezvous.messages import (
    Arrived,
    Conclude,
    DriverEnded,
    DriverStalled,
    EndDriver,
    Event,
    HeadUp,
    NodeFailed,
    NodeGone,
    NodeLost,
    Outcome,
    Ready,
    StartDriver,
    StartHead,
    StartWorker,
    StopNode,
    StopRequested,
    Tick,
)
from muster.rendezvous.protocol import FINISH_TIMEOUT_S, LEAD_RANK, Node, Plan, Protocol
from muster.rendezvous.states import ENDED, NODE_MOVES, RUN_MOVES, RunState

MOST_NODES = 4
LONGEST_GRACE_S = 60.0
RANKS = st.integers(0, MOST_NODES - 1)


def _sooner(new: float | None, old: float | None) -> bool:
    return new is not None and old is not None and new < old


class WatchedNodes(list[Node]):
    """The protocol's nodes; every change of a state must be in the table."""

    def __setitem__(self, rank: Any, node: Any) -> None:
        before = self[rank].state
        assert node.state is before or node.state in NODE_MOVES[before], f"node: {before} -> {node.state}"
        super().__setitem__(rank, node)


class WatchedProtocol(Protocol):
    """Every change of the run's state must be in the table."""

    _state: RunState | None = None

    @property
    def state(self) -> RunState:
        assert self._state is not None
        return self._state

    @state.setter
    def state(self, state: RunState) -> None:
        assert self._state is None or state in RUN_MOVES[self._state], f"run: {self._state} -> {state}"
        self._state = state


def same_but_for_refinements(before: Outcome, after: Outcome) -> bool:
    """State, reason, node and phase stand; a stopped driver's own code is taken, and who was late is appended."""
    code_refined = before.exit_code == after.exit_code or before.state == "stopped"
    reason_kept = after.end_reason == before.end_reason or after.end_reason.startswith(f"{before.end_reason}; ")
    rest = replace(after, exit_code=before.exit_code, end_reason=before.end_reason)
    return code_refined and reason_kept and rest == before


class AnyOrder(RuleBasedStateMachine):
    """Feeds every kind of event at any time, for ranks in any state."""

    @initialize(nodes=st.integers(1, MOST_NODES), ray=st.booleans(), answers=st.lists(st.booleans(), min_size=4))
    def begin(self, nodes: int, ray: bool, answers: list[bool]) -> None:
        plan = Plan([f"n{rank}" for rank in range(nodes)], ray, gather_timeout=100.0, start_timeout=50.0)
        self.now, self.answers = 0.0, answers
        self.protocol = WatchedProtocol(plan, self.now)
        self.protocol.nodes = WatchedNodes(self.protocol.nodes)
        self.commands: Counter[Any] = Counter()
        self.joined: set[int] = set()
        self.unanswered: set[int] = set()  # ranks told to stop that have not reported since

    def feed(self, event: Event) -> None:
        before, state, driving = self.protocol.outcome, self.protocol.state, self.protocol.driver_running
        deadline = self.protocol.deadline
        commands = self.protocol.handle(event, self.now)
        if isinstance(event, (NodeGone, NodeLost)):
            self.unanswered.discard(event.rank)
        elif isinstance(event, Arrived):
            self.joined.add(event.rank)
        if before is not None:
            assert self.protocol.outcome is not None and same_but_for_refinements(before, self.protocol.outcome)
        if state in ENDED or (isinstance(event, DriverEnded) and not driving):
            assert commands == [] and self.protocol.outcome == before
        if state is RunState.FINISHING:
            assert not any(isinstance(c, (StartDriver, StartHead, StartWorker)) for c in commands)
            # Told again only to be quicker than it was told before.
            assert not any(isinstance(c, EndDriver) for c in commands) or _sooner(self.protocol.deadline, deadline)
        if any(isinstance(command, StopNode) for command in commands):
            assert not self.protocol.driver_running  # a driver is ended before the nodes under it
        for command in commands:
            self.commands[command if isinstance(command, (StopNode, StartWorker)) else type(command)] += 1
            if isinstance(command, StopNode):
                self.unanswered.add(command.rank)

    # -- events -------------------------------------------------------------------------------------------------

    def rank(self, rank: int) -> int:
        return rank % self.protocol.plan.nodes

    @rule(rank=RANKS)
    def a_node_arrives(self, rank: int) -> None:
        self.feed(Arrived(self.rank(rank), f"host-{rank}"))

    @rule()
    def all_nodes_arrive(self) -> None:
        for node in self.protocol.plan.hosts:
            self.feed(Arrived(int(node[1:]), node))

    @rule()
    def the_head_is_up(self) -> None:
        self.feed(HeadUp())

    @rule(rank=RANKS)
    def a_node_is_ready(self, rank: int) -> None:
        self.feed(Ready(self.rank(rank)))

    @rule()
    def ray_is_up_everywhere(self) -> None:
        self.feed(HeadUp())
        for rank in range(self.protocol.plan.nodes):
            self.feed(Ready(rank))

    @rule(rank=RANKS, phase=st.sampled_from(["start", "ray"]))
    def a_node_fails(self, rank: int, phase: str) -> None:
        self.feed(NodeFailed(self.rank(rank), phase, "it broke"))

    @rule(rank=RANKS)
    def a_node_is_lost(self, rank: int) -> None:
        self.feed(NodeLost(self.rank(rank), "its connection ended"))

    @rule(code=st.sampled_from([0, 1, 143]))
    def the_driver_ends(self, code: int) -> None:
        self.feed(DriverEnded(code, f"exited with {code}"))

    @rule()
    def the_driver_stalls(self) -> None:
        self.feed(DriverStalled("no output for 60 s"))

    @rule(signum=st.sampled_from([2, 15]), grace=st.floats(0, LONGEST_GRACE_S))
    def somebody_asks_to_stop(self, signum: int, grace: float) -> None:
        self.feed(StopRequested("stopped by alice", signum, grace))

    @rule(rank=RANKS)
    def a_node_is_gone(self, rank: int) -> None:
        self.feed(NodeGone(self.rank(rank)))

    @rule(seconds=st.floats(0, 150))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def the_driver_starts_at_most_once_and_only_over_a_complete_run(self) -> None:
        assert self.commands[StartDriver] <= 1 and self.commands[StartHead] <= 1
        if self.commands[StartDriver]:
            assert self.joined == set(range(self.protocol.plan.nodes))

    @invariant()
    def nodes_are_told_each_thing_once_and_only_after_they_joined(self) -> None:
        for command, times in self.commands.items():
            if isinstance(command, (StopNode, StartWorker)):
                assert times == 1 and command.rank in self.joined
                assert not (isinstance(command, StartWorker) and command.rank == LEAD_RANK)

    @invariant()
    def a_run_is_concluded_exactly_when_it_has_ended_and_then_has_an_outcome(self) -> None:
        ended = self.protocol.state in ENDED
        assert self.commands[Conclude] == int(ended)
        if ended:
            assert self.protocol.outcome is not None and self.protocol.outcome.state == self.protocol.state.value

    @invariant()
    def finishing_goes_on_only_while_somebody_has_not_answered(self) -> None:
        if self.protocol.state is RunState.FINISHING:
            assert self.unanswered or self.protocol.driver_running

    @precondition(lambda self: self.protocol.state is RunState.FINISHING)
    @invariant()
    def finishing_has_a_deadline(self) -> None:
        deadline = self.protocol.deadline
        assert deadline is not None and deadline <= self.now + LONGEST_GRACE_S + FINISH_TIMEOUT_S

    # -- and it always ends -------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Once the end has begun: answers, of whatever kind, or the deadline alone, conclude the run."""
        if not hasattr(self, "protocol"):
            return
        self.feed(StopRequested("the test is over", 15, 1.0))
        wait_for_deadline, *kinds = self.answers
        if wait_for_deadline:
            self.now += LONGEST_GRACE_S + FINISH_TIMEOUT_S
            self.feed(Tick())
        else:
            if self.protocol.driver_running:
                self.feed(DriverEnded(0, "exited with 0"))
            for rank in sorted(self.unanswered):
                self.feed(NodeGone(rank) if kinds[rank % len(kinds)] else NodeLost(rank, "its host went down"))
        assert self.protocol.state in ENDED
        self.a_run_is_concluded_exactly_when_it_has_ended_and_then_has_an_outcome()


TestAnyOrderOfEvents = AnyOrder.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
