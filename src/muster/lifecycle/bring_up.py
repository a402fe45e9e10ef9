"""A run's nodes and how they come up: who takes part, when a round closes, who is started when. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from muster.lifecycle import events as m
from muster.lifecycle import roles
from muster.lifecycle.config import FIRST_TERM_START, OUTSIDE, RunConfig, TermStart
from muster.lifecycle.events import Command, RunOutcome
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.services import Services
from muster.lifecycle.states import CONNECTED, NODE_MOVES, RUN_MOVES, NodeState, RunState
from muster.lifecycle.topology import NOWHERE


class Rounds:
    """The state of a run, and the half of the protocol that leads from gathering to a running driver."""

    def __init__(self, plan: RunConfig, now: float, term_start: TermStart = FIRST_TERM_START) -> None:
        assert term_start.leader != OUTSIDE or not plan.ray, "Ray's head is on the leader's node"
        self.plan = plan
        self.leader = term_start.leader
        self.state = RunState.GATHERING
        self.cycle = term_start.cycle
        self.restart_reason = term_start.reason  # why the present cycle follows the one before
        self.nodes = roles.newcomers(plan, term_start.excluded)
        # Asked at every arrival, so counted as nodes change: who is here, by domain too, and who may come.
        self._here, self._near = 0, Counter[str]()
        self._missing = sum(node.may_come for node in self.nodes)
        self._unready = sum(node.unready for node in self.nodes)  # asked at every word of a node that is ready
        self.services = Services(plan.services, plan.wanted)
        self.membership = 0  # grows when a node joins, leaves or is excluded
        self._held = 0  # whose end has to be seen: asked at every word of one that is clean
        self.outcome: RunOutcome | None = None
        self.moves: list[RunNode | RunState] = [
            RunState.GATHERING
        ]  # every move made, in order, for whoever publishes them
        self.role_changes = 0
        self.without_progress = (
            term_start.without_progress
        )  # cycles in a row, up to the one before, that made no progress
        self.progressed = False  # in the present cycle
        self.head_up = False
        self.driver_running = False
        self.last_call: float | None = None  # when a round with enough nodes stops waiting for the others
        self.deadline: float | None = now + plan.gather_timeout

    def _arrived(self, event: m.Arrived, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        if node.state is not NodeState.EXPECTED:
            return []
        self._put(replace(node, host=event.host, place=event.place if self.plan.topology else NOWHERE))
        self._move_node(event.rank, NodeState.ARRIVED)
        return self._take_part(event.rank, now)

    def _take_part(self, rank: int, now: float) -> list[Command]:
        """A node is there for this cycle. After the round has closed it is a spare; the first head need not wait."""
        if self.state is RunState.FINISHING:
            return self._stop_node(rank)
        if self.state is not RunState.GATHERING:
            self._set_role(rank, Role.SPARE)
            return []
        if rank == self.leader and self.cycle == 0:
            self._set_role(rank, Role.ACTIVE, 0)
        commands = self._begin(rank) if self.nodes[rank].role is Role.ACTIVE else []
        return commands + self._maybe_close(now)

    def _maybe_close(self, now: float) -> list[Command]:
        """Close the round when nobody can still come; or when enough are here and last call or deadline is over."""
        if self.state is not RunState.GATHERING or (not self.plan.spares and self._somebody_is_missing()):
            return []
        if not self._enough() or not self._half_is_here():
            return []
        if self._somebody_is_missing():
            assert self.deadline is not None
            self.last_call = now + self.plan.last_call if self.last_call is None else self.last_call
            if now < min(self.last_call, self.deadline):
                return []
        for node in roles.assigned(self.nodes, self.plan, self.leader):
            self._change_role(node)
        self._move_run(RunState.STARTING)
        self.deadline = now + self.plan.start_timeout
        return self._begin_all() + self._maybe_start_driver()

    def _begin(self, rank: int) -> list[Command]:
        """Start an active node's part of Ray, if that can be: workers wait for the head."""
        if not self.plan.ray:
            self._move_node(rank, NodeState.READY)
        elif rank == self.leader or self.head_up:
            self._move_node(rank, NodeState.STARTING)
            return [m.StartHead() if rank == self.leader else m.StartWorker(rank)]
        return []

    def _begin_all(self) -> list[Command]:
        waiting = [node.rank for node in self._active() if node.state is NodeState.ARRIVED]
        return [command for rank in waiting for command in self._begin(rank)]

    def _head_is_up(self) -> list[Command]:
        if not self.plan.ray or self.nodes[self.leader].state is not NodeState.STARTING:
            return []
        self.head_up = True
        return self._begin_all()

    def _ready(self, event: m.NodeReady) -> list[Command]:
        if self.nodes[event.rank].state is not NodeState.STARTING:
            return []
        self._move_node(event.rank, NodeState.READY)
        return self._maybe_start_driver()

    def _maybe_start_driver(self) -> list[Command]:
        if self._unready:
            return []
        if self.state is RunState.RUNNING:
            self.deadline = None  # every replacement is up
        if self.state is not RunState.STARTING or not self.services.open:
            return []
        self._move_run(RunState.RUNNING)
        self.deadline = None
        self.driver_running = True
        return [m.StartDriver()]

    def _stop_node(self, rank: int) -> list[Command]:
        if self.nodes[rank].state not in CONNECTED:
            return []
        self._move_node(rank, NodeState.STOPPING)
        return [m.StopNode(rank)]

    # -- small questions ----------------------------------------------------------------------------------------

    def _somebody_is_missing(self) -> bool:
        """Not here, and still may come. Without spares that alone keeps a round open."""
        return self._missing > 0

    def _half_is_here(self) -> bool:
        """Of those that may come. With fewer, the others could find a leader of their own."""
        return self._here >= self._missing or not self.plan.succession

    def _enough(self) -> bool:
        """Whether the round could close with who is here."""
        size, leader = self.plan.segment, None if self.leader == OUTSIDE else self.nodes[self.leader]
        if self._here < self.plan.wanted or (leader is not None and not leader.here):
            return False
        if size == 1:
            return True
        led = leader is None or (leader.place.domain != "" and self._near[leader.place.domain] >= size)
        return led and sum(near // size * size for name, near in self._near.items() if name) >= self.plan.wanted

    def _active(self) -> Iterator[RunNode]:
        return (node for node in self.nodes if node.role is Role.ACTIVE)

    def _set_role(self, rank: int, role: Role, logical: int | None = None) -> None:
        self._change_role(replace(self.nodes[rank], role=role, logical=logical))

    def _change_role(self, node: RunNode) -> None:
        before = self.nodes[node.rank]
        if node.role is not before.role or node.logical != before.logical:
            self._put(node)
            self.role_changes += 1
            self.moves.append(node)

    def _move_node(self, rank: int, state: NodeState) -> None:
        node = self.nodes[rank]
        if state in NODE_MOVES[node.state]:
            self._put(replace(node, state=state))
            self.moves.append(self.nodes[rank])

    def _put(self, node: RunNode) -> None:
        """The one place where a node is changed."""
        before, self.nodes[node.rank] = self.nodes[node.rank], node
        self._unready += node.unready - before.unready
        if self.services.plans:
            self.services.node_is(node.rank, node.logical if node.serves else None)
        if node.state is before.state and node.fit == before.fit and node.role is not Role.EXCLUDED:
            return  # the rest does not depend on what role it has
        if node.here != before.here:
            change = 1 if node.here else -1
            self._here += change
            self._near[node.place.domain] += change
        self._missing += node.may_come - before.may_come
        self._held += node.held - before.held
        excluded = (node.role is Role.EXCLUDED) != (before.role is Role.EXCLUDED)
        self.membership += excluded or node.held != before.held

    def _move_run(self, state: RunState) -> None:
        assert state in RUN_MOVES[self.state], f"{self.state.value} -> {state.value}"
        self.state = state
        self.moves.append(state)
