"""The protocol of one cycle: gather the nodes, bring Ray up, run the driver, end everything.

A state machine without I/O, clock or randomness: events and the time go in, commands come out. The states and their
moves are the tables in states.py; an event that does not fit the present state changes nothing. Spares and further
cycles will widen `Plan` (how many of the nodes are active) and `_close_gathering` (who gets which role).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.rendezvous.messages import (
    Arrived,
    Command,
    Conclude,
    DriverEnded,
    DriverStalled,
    EndDriver,
    Event,
    HeadUp,
    NodeFailed,
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
from muster.rendezvous.states import CONNECTED, DEPARTED, ENDED, NODE_MOVES, RUN_MOVES, NodeState, RunState

LEAD_RANK = 0
INFRASTRUCTURE_FAILED = 125  # the exit code for Muster's or the cluster's own failures
FAILURE_GRACE_S = 2.0  # after a failure the driver's cluster is broken: a long grace would only hold the nodes
FINISH_TIMEOUT_S = 20.0  # beyond the driver's grace: to stop and to collect logs, on every node at once


@dataclass(frozen=True)
class Plan:
    """What the run wants, as far as the protocol is concerned."""

    hosts: Sequence[str]  # by rank
    ray: bool = True
    gather_timeout: float = 600.0
    start_timeout: float = 300.0

    @property
    def nodes(self) -> int:
        return len(self.hosts)


@dataclass(frozen=True)
class Node:
    """One member as the lead knows it."""

    rank: int
    host: str
    state: NodeState = NodeState.EXPECTED

    @property
    def role(self) -> str:
        return "lead" if self.rank == LEAD_RANK else "worker"


class Protocol:
    """Feed it events with `handle`; carry out the commands it returns."""

    def __init__(self, plan: Plan, now: float) -> None:
        self.plan = plan
        self.state = RunState.GATHERING
        self.nodes = [Node(rank, host) for rank, host in enumerate(plan.hosts)]
        self.outcome: Outcome | None = None
        self.moves: list[Node | RunState] = [
            RunState.GATHERING
        ]  # every move made, in order, for whoever publishes them
        self.head_up = False
        self.driver_running = False
        self.deadline: float | None = now + plan.gather_timeout

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; return what is to be done because of it."""
        if self.state in ENDED:
            return []
        if isinstance(event, Tick):
            return self._check_deadline(now)
        if isinstance(event, Arrived):
            return self._arrived(event, now)
        if isinstance(event, HeadUp):
            return self._head_is_up()
        if isinstance(event, Ready):
            return self._ready(event, now)
        if isinstance(event, NodeFailed):
            return self._failed(event, now)
        if isinstance(event, NodeLost):
            return self._lost(event, now)
        if isinstance(event, DriverEnded):
            return self._driver_ended(event, now)
        if isinstance(event, DriverStalled):
            return self._stalled(event, now)
        if isinstance(event, StopRequested):
            ended = Outcome("stopped", 128 + event.signal, event.reason)
            return self._finish(ended, now, event.grace)
        self._move_node(event.rank, NodeState.GONE)
        return self._maybe_conclude()

    # -- bringing up --------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        if node.state is not NodeState.EXPECTED:
            return []
        self.nodes[event.rank] = replace(node, host=event.host)
        self._move_node(event.rank, NodeState.ARRIVED)
        if self.state is RunState.FINISHING:
            return self._stop_node(event.rank)
        commands: list[Command] = []
        if not self.plan.ray:
            self._move_node(event.rank, NodeState.READY)
        elif event.rank == LEAD_RANK:
            self._move_node(event.rank, NodeState.STARTING)
            commands.append(StartHead())
        elif self.head_up:
            commands += self._start_workers()
        return commands + self._close_gathering(now) + self._maybe_start_driver()

    def _head_is_up(self) -> list[Command]:
        if self.nodes[LEAD_RANK].state is not NodeState.STARTING:
            return []
        self.head_up = True
        return self._start_workers()

    def _ready(self, event: Ready, now: float) -> list[Command]:
        if self.nodes[event.rank].state is not NodeState.STARTING:
            return []
        self._move_node(event.rank, NodeState.READY)
        return self._maybe_start_driver()

    def _close_gathering(self, now: float) -> list[Command]:
        if self.state is RunState.GATHERING and not self.missing():
            self._move_run(RunState.STARTING)
            self.deadline = now + self.plan.start_timeout
        return []

    def _start_workers(self) -> list[Command]:
        arrived = [node.rank for node in self.nodes if node.state is NodeState.ARRIVED]
        if self.state is RunState.FINISHING:
            return []
        for rank in arrived:
            self._move_node(rank, NodeState.STARTING)
        return [StartWorker(rank) for rank in arrived]

    def _maybe_start_driver(self) -> list[Command]:
        if self.state is not RunState.STARTING or not self._all(NodeState.READY):
            return []
        self._move_run(RunState.RUNNING)
        self.deadline = None
        self.driver_running = True
        return [StartDriver()]

    # -- ending -------------------------------------------------------------------------------------------------

    def _failed(self, event: NodeFailed, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        if self.state is RunState.FINISHING or node.state in DEPARTED:
            return []
        # A node that never joined has nobody to report "gone": it is as good as lost.
        self._move_node(event.rank, NodeState.FAILED if node.state in CONNECTED else NodeState.LOST)
        return self._finish(self._failure(node, event.phase, event.reason), now, FAILURE_GRACE_S)

    def _lost(self, event: NodeLost, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        if node.state in DEPARTED:
            return []
        phase = self.state.value
        self._move_node(event.rank, NodeState.LOST)
        if self.state is RunState.FINISHING:
            return self._maybe_conclude()
        return self._finish(replace(self._failure(node, phase, event.reason), lost=True), now, FAILURE_GRACE_S)

    def _driver_ended(self, event: DriverEnded, now: float) -> list[Command]:
        if not self.driver_running:
            return []
        self.driver_running = False
        if self.outcome is not None and self.outcome.state == "stopped":
            self.outcome = replace(self.outcome, exit_code=event.code)
        state = "succeeded" if event.code == 0 else "failed"
        return self._finish(Outcome(state, event.code, f"the driver {event.how}"), now, 0.0)

    def _stalled(self, event: DriverStalled, now: float) -> list[Command]:
        if not self.driver_running:
            return []
        ended = Outcome("failed", INFRASTRUCTURE_FAILED, event.reason, phase="stalled")
        return self._finish(ended, now, FAILURE_GRACE_S)

    def _finish(self, outcome: Outcome, now: float, grace: float) -> list[Command]:
        """Record the outcome, unless there is one; end the driver first, then the nodes under it."""
        if self.outcome is None:
            self.outcome = outcome
        first = self.state is not RunState.FINISHING
        if first:
            self._move_run(RunState.FINISHING)
        if self.driver_running:
            # A later reason may leave less time than the first, never more.
            ends = now + grace + FINISH_TIMEOUT_S
            if first or (self.deadline is not None and ends < self.deadline):
                self.deadline = ends
                return [EndDriver(grace)]
            return []
        if first:
            self.deadline = now + FINISH_TIMEOUT_S
        stops = [stop for node in self.nodes for stop in self._stop_node(node.rank)]
        return stops + self._maybe_conclude()

    def _stop_node(self, rank: int) -> list[Command]:
        if self.nodes[rank].state not in CONNECTED:
            return []
        self._move_node(rank, NodeState.STOPPING)
        return [StopNode(rank)]

    def _maybe_conclude(self) -> list[Command]:
        """Conclude when every node that joined has left; one that never joined holds nothing of the run."""
        waiting = [n for n in self.nodes if n.state not in DEPARTED and n.state is not NodeState.EXPECTED]
        if self.state is not RunState.FINISHING or self.driver_running or waiting:
            return []
        return self._conclude()

    def _conclude(self) -> list[Command]:
        assert self.outcome is not None
        self._move_run(RunState(self.outcome.state))
        self.deadline = None
        return [Conclude()]

    def _check_deadline(self, now: float) -> list[Command]:
        if self.deadline is None or now < self.deadline:
            return []
        if self.state is RunState.GATHERING:
            waited, names = self.plan.gather_timeout, [node.host for node in self.missing()]
            reason = f"{_listed(names)} did not arrive within {waited:g} s"
            return self._finish(self._failure(self.missing()[0], "gathering", reason), now, 0.0)
        if self.state is RunState.STARTING:
            late = [node for node in self.nodes if node.state is not NodeState.READY]
            reason = f"Ray was not up on {_listed([n.host for n in late])} within {self.plan.start_timeout:g} s"
            return self._finish(self._failure(late[0], "starting", reason), now, 0.0)
        assert self.outcome is not None
        held = [node.host for node in self.nodes if node.state is NodeState.STOPPING]
        unclean = "the driver did not end" if self.driver_running else f"{_listed(held)} did not confirm to be clean"
        self.outcome = replace(self.outcome, end_reason=f"{self.outcome.end_reason}; {unclean}")
        return self._conclude()

    # -- small questions ----------------------------------------------------------------------------------------

    def missing(self) -> list[Node]:
        return [node for node in self.nodes if node.state is NodeState.EXPECTED]

    def _all(self, state: NodeState) -> bool:
        return all(node.state is state for node in self.nodes)

    def _failure(self, node: Node, phase: str, reason: str) -> Outcome:
        return Outcome("failed", INFRASTRUCTURE_FAILED, reason, node.host, node.rank, phase)

    def _move_node(self, rank: int, state: NodeState) -> None:
        node = self.nodes[rank]
        if state in NODE_MOVES[node.state]:
            self.nodes[rank] = replace(node, state=state)
            self.moves.append(self.nodes[rank])

    def _move_run(self, state: RunState) -> None:
        assert state in RUN_MOVES[self.state], f"{self.state.value} -> {state.value}"
        self.state = state
        self.moves.append(state)


def _listed(names: Sequence[str], most: int = 8) -> str:
    """'n1, n2 and 12 more': enough to act on, short enough to read."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
