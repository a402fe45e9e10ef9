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
    Rejoin,
    StartDriver,
    StartHead,
    StartWorker,
    StopNode,
    StopRequested,
    Tick,
)
from muster.rendezvous.protocol import FINISH_TIMEOUT_S, Node, Plan, Protocol
from muster.rendezvous.roles import Role
from muster.rendezvous.states import ENDED, NODE_MOVES, RUN_MOVES, NodeState, RunState

MOST_NODES = 5
LONGEST_GRACE_S = 60.0
RANKS = st.integers(0, MOST_NODES - 1)
AGO = st.sampled_from([0, 0, 0, 1])  # how many cycles ago an event's own cycle was
MENDING = st.fixed_dictionaries(
    {
        "on_node_loss": st.sampled_from(["fail", "replace", "restart"]),
        "max_restarts": st.integers(0, 2),
        "restart_on_driver_failure": st.booleans(),
        "restart_grace": st.floats(0, LONGEST_GRACE_S),
    }
)


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

    @initialize(
        nodes=st.integers(1, MOST_NODES),
        spares=st.integers(0, 2),
        ray=st.booleans(),
        mending=MENDING,
        answers=st.lists(st.booleans(), min_size=4),
    )
    def begin(self, nodes: int, spares: int, ray: bool, mending: dict[str, Any], answers: list[bool]) -> None:
        hosts = [f"n{rank}" for rank in range(nodes)]
        plan = Plan(hosts, ray, 100.0, 50.0, spares=min(spares, nodes - 1), **mending)
        self.now, self.answers = 0.0, answers
        self.protocol = WatchedProtocol(plan, self.now)
        self.protocol.nodes = WatchedNodes(self.protocol.nodes)
        self.commands: Counter[Any] = Counter()  # by cycle; those to a node also by how often it had joined
        self.joined: Counter[int] = Counter()  # how often each node joined, or joined again
        self.joined_in: dict[int, int] = {}  # the cycle in which it did
        self.closed: set[int] = set()  # cycles whose round has closed
        self.unanswered: set[int] = set()  # ranks told to stop that have not reported since

    def feed(self, event: Event) -> None:
        before, state, driving = self.protocol.outcome, self.protocol.state, self.protocol.driver_running
        deadline, current = self.protocol.deadline, getattr(event, "cycle", self.cycle) == self.cycle
        commands = self.protocol.handle(event, self.now)
        if isinstance(event, NodeLost) or (isinstance(event, NodeGone) and (current or self.is_excluded(event.rank))):
            self.unanswered.discard(event.rank)
        elif isinstance(event, Arrived) and not self.joined[event.rank]:
            self.joined[event.rank], self.joined_in[event.rank] = 1, self.cycle
        if before is not None:
            assert self.protocol.outcome is not None and same_but_for_refinements(before, self.protocol.outcome)
        if state in ENDED or not current or (isinstance(event, DriverEnded) and not driving):
            # The word of an excluded node, of whichever cycle, may be the last that was waited for.
            assert self.protocol.outcome == before and (commands == [] or isinstance(event, NodeGone))
        if state is RunState.FINISHING:
            assert not any(isinstance(c, (StartDriver, StartHead, StartWorker)) for c in commands)
        if state in (RunState.FINISHING, RunState.RESTARTING):
            # Told again only to be quicker than it was told before.
            assert not any(isinstance(c, EndDriver) for c in commands) or _sooner(self.protocol.deadline, deadline)
        for command in commands:
            self.note(command)

    def note(self, command: Any) -> None:
        if isinstance(command, Rejoin):
            self.joined[command.rank] += 1
            self.joined_in[command.rank] = self.cycle
        elif isinstance(command, (StopNode, StartWorker)):
            self.commands[self.cycle, self.joined[command.rank], command] += 1
        else:
            self.commands[self.cycle, type(command)] += 1
        if isinstance(command, StopNode):
            # A driver is ended before the nodes under it; an excluded node, or a spare, is none of them.
            assert not self.protocol.driver_running or self.protocol.nodes[command.rank].role is not Role.ACTIVE
            self.unanswered.add(command.rank)
        if isinstance(command, StartDriver):
            assert [node.state for node in self.active()] == [NodeState.READY] * self.protocol.plan.wanted

    @property
    def cycle(self) -> int:
        return self.protocol.cycle

    def active(self) -> list[Node]:
        return [node for node in self.protocol.nodes if node.role is Role.ACTIVE]

    def is_excluded(self, rank: int) -> bool:
        return self.protocol.nodes[rank].role is Role.EXCLUDED

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

    @rule(ago=AGO)
    def the_head_is_up(self, ago: int) -> None:
        self.feed(HeadUp(self.cycle - ago))

    @rule(rank=RANKS, ago=AGO)
    def a_node_is_ready(self, rank: int, ago: int) -> None:
        self.feed(Ready(self.rank(rank), self.cycle - ago))

    @rule()
    def ray_is_up_everywhere(self) -> None:
        self.feed(HeadUp(self.cycle))
        for rank in range(self.protocol.plan.nodes):
            self.feed(Ready(rank, self.cycle))

    @rule()
    def everybody_told_to_stop_is_clean(self) -> None:
        for rank in sorted(self.unanswered):
            self.feed(NodeGone(rank, self.cycle))

    @rule()
    def all_goes_well_until_the_driver_runs(self) -> None:
        self.all_nodes_arrive()
        self.everybody_told_to_stop_is_clean()
        self.time_passes(self.protocol.plan.last_call)
        self.ray_is_up_everywhere()

    @precondition(lambda self: self.protocol.state is RunState.RUNNING)
    @rule(rank=RANKS, driver_fails=st.booleans())
    def something_is_lost_under_the_driver_which_ends(self, rank: int, driver_fails: bool) -> None:
        if not driver_fails:
            self.feed(NodeLost(self.rank(rank), "its connection ended"))
        self.feed(DriverEnded(1, "exited with 1", self.cycle))

    @rule(rank=RANKS, phase=st.sampled_from(["start", "ray"]), ago=AGO)
    def a_node_fails(self, rank: int, phase: str, ago: int) -> None:
        self.feed(NodeFailed(self.rank(rank), phase, "it broke", self.cycle - ago))

    @rule(rank=RANKS)
    def a_node_is_lost(self, rank: int) -> None:
        self.feed(NodeLost(self.rank(rank), "its connection ended"))

    @rule(code=st.sampled_from([0, 1, 143]), ago=AGO)
    def the_driver_ends(self, code: int, ago: int) -> None:
        self.feed(DriverEnded(code, f"exited with {code}", self.cycle - ago))

    @rule(ago=AGO)
    def the_driver_stalls(self, ago: int) -> None:
        self.feed(DriverStalled("no output for 60 s", self.cycle - ago))

    @rule(signum=st.sampled_from([2, 15]), grace=st.floats(0, LONGEST_GRACE_S))
    def somebody_asks_to_stop(self, signum: int, grace: float) -> None:
        self.feed(StopRequested("stopped by alice", signum, grace))

    @rule(rank=RANKS, ago=AGO)
    def a_node_is_gone(self, rank: int, ago: int) -> None:
        self.feed(NodeGone(self.rank(rank), self.cycle - ago))

    @rule(seconds=st.floats(0, 150))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def head_and_driver_start_at_most_once_in_a_cycle(self) -> None:
        assert self.commands[self.cycle, StartDriver] <= 1 and self.commands[self.cycle, StartHead] <= 1

    @invariant()
    def nodes_are_told_each_thing_once_and_only_after_they_joined(self) -> None:
        for key, times in self.commands.items():
            if isinstance(key[-1], (StopNode, StartWorker)):
                assert times == 1 and key[1] > 0
                assert not (isinstance(key[-1], StartWorker) and key[-1].rank == self.protocol.lead)

    @invariant()
    def no_two_nodes_have_one_rank_and_only_active_ones_have_any(self) -> None:
        ranks = [node.logical for node in self.protocol.nodes if node.logical is not None]
        assert len(set(ranks)) == len(ranks) and set(ranks) <= set(range(self.protocol.plan.wanted))
        assert len(ranks) == len(self.active())
        if self.protocol.state in (RunState.STARTING, RunState.RUNNING):
            assert len(ranks) == self.protocol.plan.wanted

    @invariant()
    def no_active_node_is_of_another_cycle(self) -> None:
        for node in self.active():
            if node.state in (NodeState.STARTING, NodeState.READY):
                assert self.joined_in[node.rank] == self.cycle

    @invariant()
    def a_closed_round_never_reopens_and_no_restart_exceeds_the_budget(self) -> None:
        assert self.cycle <= self.protocol.plan.max_restarts
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
                self.feed(DriverEnded(0, "exited with 0", self.cycle))
            for rank in sorted(self.unanswered):
                self.feed(
                    NodeGone(rank, self.cycle) if kinds[rank % len(kinds)] else NodeLost(rank, "its host went down")
                )
        assert self.protocol.state in ENDED
        self.a_run_is_concluded_exactly_when_it_has_ended_and_then_has_an_outcome()


TestAnyOrderOfEvents = AnyOrder.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
