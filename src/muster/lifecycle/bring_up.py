"""The bring-up of a run: nodes arrive, the round closes, Ray starts on them, the driver starts. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from muster.lifecycle import events as m
from muster.lifecycle import roles
from muster.lifecycle.config import EXTERNAL_LEADER, FIRST_TERM_START, RunConfig, TermStart
from muster.lifecycle.events import Command, RunOutcome
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.services import Services
from muster.lifecycle.states import CONNECTED, NODE_TRANSITIONS, RUN_TRANSITIONS, NodeState, RunState
from muster.lifecycle.topology import UNKNOWN_LOCATION


class BringUp:
    """The state of a run, and the transitions from `gathering` to `running`."""

    def __init__(self, config: RunConfig, now: float, term_start: TermStart = FIRST_TERM_START) -> None:
        assert term_start.leader != EXTERNAL_LEADER or not config.ray, "Ray's head is on the leader's node"
        self.config = config
        self.leader = term_start.leader
        self.state = RunState.GATHERING
        self.cycle = term_start.cycle
        self.restart_reason = term_start.reason  # why the current cycle follows the previous one
        self.nodes = roles.initial_nodes(config, term_start.excluded)
        # Counters, updated as nodes change: counting ten thousand nodes at each event would be too slow.
        self._available, self._available_by_domain = 0, Counter[str]()
        self._pending = sum(node.pending for node in self.nodes)
        self._unready = sum(node.unready for node in self.nodes)
        self._joined = 0
        self.services = Services(config.services, config.active_nodes)
        self.membership_version = 0  # grows when a node joins, leaves or is excluded
        self.outcome: RunOutcome | None = None
        self.changes: list[RunNode | RunState] = [RunState.GATHERING]  # in order; the publisher takes them
        self.role_changes = 0
        self.without_progress = term_start.without_progress  # consecutive cycles without progress before this one
        self.progressed = False  # in the current cycle
        self.head_up = False
        self.driver_running = False
        self.last_call: float | None = None  # time at which a round with enough nodes stops waiting for the others
        self.deadline: float | None = now + config.gather_timeout

    def _on_arrived(self, event: m.Arrived, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        if node.state is not NodeState.EXPECTED:
            return []
        location = event.location if self.config.topology else UNKNOWN_LOCATION
        self._update_node(replace(node, host=event.host, location=location))
        self._set_node_state(event.rank, NodeState.ARRIVED)
        return self._join_cycle(event.rank, now)

    def _join_cycle(self, rank: int, now: float) -> list[Command]:
        """Add an arrived node to the cycle: as a spare once the round has closed. The first head starts at once."""
        if self.state is RunState.FINISHING:
            return self._stop_node(rank)
        if self.state is not RunState.GATHERING:
            self._set_role(rank, Role.SPARE)
            return []
        if rank == self.leader and self.cycle == 0:
            self._set_role(rank, Role.ACTIVE, 0)
        commands = self._start_node(rank) if self.nodes[rank].role is Role.ACTIVE else []
        return commands + self._maybe_close(now)

    def _maybe_close(self, now: float) -> list[Command]:
        """Close the round when no node is pending, or enough are available and last call or deadline has passed."""
        if self.state is not RunState.GATHERING or (not self.config.spares and self._pending):
            return []
        if not self._enough_available() or not self._half_available():
            return []
        if self._pending:
            assert self.deadline is not None
            self.last_call = now + self.config.last_call if self.last_call is None else self.last_call
            if now < min(self.last_call, self.deadline):
                return []
        for node in roles.assign_roles(self.nodes, self.config, self.leader):
            self._change_role(node)
        self._set_run_state(RunState.STARTING)
        self.deadline = now + self.config.start_timeout
        return self._start_arrived_nodes() + self._maybe_start_driver()

    def _start_node(self, rank: int) -> list[Command]:
        """Start Ray on an active node; workers wait for the head."""
        if not self.config.ray:
            self._set_node_state(rank, NodeState.READY)
        elif rank == self.leader or self.head_up:
            self._set_node_state(rank, NodeState.STARTING)
            return [m.StartHead() if rank == self.leader else m.StartWorker(rank)]
        return []

    def _start_arrived_nodes(self) -> list[Command]:
        waiting = [node.rank for node in self._active() if node.state is NodeState.ARRIVED]
        return [command for rank in waiting for command in self._start_node(rank)]

    def _on_head_up(self) -> list[Command]:
        if not self.config.ray or self.nodes[self.leader].state is not NodeState.STARTING:
            return []
        self.head_up = True
        return self._start_arrived_nodes()

    def _on_node_ready(self, event: m.NodeReady) -> list[Command]:
        if self.nodes[event.rank].state is not NodeState.STARTING:
            return []
        self._set_node_state(event.rank, NodeState.READY)
        return self._maybe_start_driver()

    def _maybe_start_driver(self) -> list[Command]:
        if self._unready:
            return []
        if self.state is RunState.RUNNING:
            self.deadline = None  # every replacement is up
        if self.state is not RunState.STARTING or not self.services.gate_open:
            return []
        self._set_run_state(RunState.RUNNING)
        self.deadline = None
        self.driver_running = True
        return [m.StartDriver()]

    def _stop_node(self, rank: int) -> list[Command]:
        if self.nodes[rank].state not in CONNECTED:
            return []
        self._set_node_state(rank, NodeState.STOPPING)
        return [m.StopNode(rank)]

    # -- nodes and their counters -------------------------------------------------------------------------------

    def _half_available(self) -> bool:
        """Return whether no more nodes are pending than available: more could elect another leader."""
        return self._available >= self._pending or not self.config.failover

    def _enough_available(self) -> bool:
        size, leader = self.config.segment, None if self.leader == EXTERNAL_LEADER else self.nodes[self.leader]
        if self._available < self.config.active_nodes or (leader is not None and not leader.available):
            return False
        if size == 1:
            return True
        domains = self._available_by_domain
        if leader is not None and (not leader.location.domain or domains[leader.location.domain] < size):
            return False
        return sum(count // size * size for name, count in domains.items() if name) >= self.config.active_nodes

    def _active(self) -> Iterator[RunNode]:
        return (node for node in self.nodes if node.role is Role.ACTIVE)

    def _set_role(self, rank: int, role: Role, logical: int | None = None) -> None:
        self._change_role(replace(self.nodes[rank], role=role, logical=logical))

    def _change_role(self, node: RunNode) -> None:
        before = self.nodes[node.rank]
        if node.role is not before.role or node.logical != before.logical:
            self._update_node(node)
            self.role_changes += 1
            self.changes.append(node)

    def _set_node_state(self, rank: int, state: NodeState) -> None:
        node = self.nodes[rank]
        if state in NODE_TRANSITIONS[node.state]:
            self._update_node(replace(node, state=state))
            self.changes.append(self.nodes[rank])

    def _update_node(self, node: RunNode) -> None:
        """Replace a node and update the counters. Nodes are changed only here."""
        before, self.nodes[node.rank] = self.nodes[node.rank], node
        self._unready += node.unready - before.unready
        if self.services.plans:
            self.services.set_logical(node.rank, node.logical if node.runs_services else None)
        if node.state is before.state and node.eligible == before.eligible and node.role is not Role.EXCLUDED:
            return  # the other counters do not depend on the role
        if node.available != before.available:
            change = 1 if node.available else -1
            self._available += change
            self._available_by_domain[node.location.domain] += change
        self._pending += node.pending - before.pending
        self._joined += node.joined - before.joined
        excluded = (node.role is Role.EXCLUDED) != (before.role is Role.EXCLUDED)
        self.membership_version += excluded or node.joined != before.joined

    def _set_run_state(self, state: RunState) -> None:
        assert state in RUN_TRANSITIONS[self.state], f"{self.state.value} -> {state.value}"
        self.state = state
        self.changes.append(state)
