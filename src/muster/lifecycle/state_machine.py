"""The state machine of a run: gather the nodes, start Ray, run the driver, recover from failures, end everything.

It has no I/O, clock or randomness: events and the time go in, commands come out. states.py has the transition tables,
roles.py the roles, policy.py the decisions after a loss. Events that do not fit the current state, or belong to another
cycle, are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster.exit_codes import BY_SIGNAL, INFRASTRUCTURE_FAILED
from muster.lifecycle import end_reasons, policy, roles
from muster.lifecycle import events as m
from muster.lifecycle.config import FAILURE_GRACE_S, FINISH_TIMEOUT_S, FIRST_TERM_START, RunConfig, TermStart
from muster.lifecycle.events import Command, EndDriver, RunOutcome, StopNode
from muster.lifecycle.policy import Action, Decision, FailureContext
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.service_rules import ServiceRules
from muster.lifecycle.states import CONNECTED, DEPARTED, ENDED, NodeState, RunState

__all__ = ["FAILURE_GRACE_S", "FINISH_TIMEOUT_S", "RunConfig", "RunNode", "RunStateMachine"]


class RunStateMachine(ServiceRules):
    """The state of one run under one leader: feed events to `handle` and execute the commands that it returns."""

    def __init__(self, config: RunConfig, now: float, term_start: TermStart = FIRST_TERM_START) -> None:
        """Start a term. A later leader continues with the next cycle or, if that is not allowed, ends the run."""
        super().__init__(config, now, term_start)
        self._failed_leader: tuple[RunOutcome, str | None] | None = None  # outcome and phase, before the driver ran
        if term_start.lost is None:
            return
        restarts, without_progress = term_start.cycle - 1, term_start.without_progress
        context = FailureContext(config, self.nodes, self.leader, False, restarts, without_progress)
        decision = policy.after_leader_loss(context)
        if decision.action is Action.END:
            ended = replace(end_reasons.failure(self.nodes[term_start.lost], "lead", term_start.reason), lost=True)
            self.outcome = _final_outcome(ended, decision)
            self._set_run_state(RunState.FINISHING)
            self.deadline = now + FINISH_TIMEOUT_S

    def handle(self, event: m.Event, now: float) -> list[Command]:
        """Handle one event and return the commands to execute."""
        if self.state in ENDED or self._is_stale(event):
            return []
        return self._check_services(event, now) + self._handle(event, now) + self._start_services(now)

    def _handle(self, event: m.Event, now: float) -> list[Command]:
        if isinstance(event, m.Tick):
            return self._check_deadline(now)
        if isinstance(event, m.Arrived):
            return self._on_arrived(event, now) + self._end_if_too_few(now)
        if isinstance(event, m.HeadUp):
            return self._on_head_up()
        if isinstance(event, m.NodeReady):
            return self._on_node_ready(event)
        if isinstance(event, m.NodeFailed):
            return self._on_node_failed(event, now)
        if isinstance(event, m.NodeLost):
            return self._on_node_lost(event, now)
        if isinstance(event, m.DriverEnded):
            return self._on_driver_ended(event, now)
        if isinstance(event, m.DriverStalled):
            return self._on_driver_stalled(event, now)
        if isinstance(event, m.StopRequested):
            ended = RunOutcome("stopped", BY_SIGNAL + event.signal, event.reason)
            return self._finish(ended, now, event.grace)
        if isinstance(event, m.Health):
            return self._on_health(event, now)
        if isinstance(event, m.Progress):
            self.progressed = self.progressed or self.driver_running
        if isinstance(event, m.NodeGone):
            return self._on_node_gone(event, now) + self._end_if_too_few(now)
        return []

    def _is_stale(self, event: m.Event) -> bool:
        """Return whether the event belongs to another cycle. A `gone` of an excluded node is valid in any cycle."""
        excluded = isinstance(event, m.NodeGone) and self.nodes[event.rank].role is Role.EXCLUDED
        return getattr(event, "cycle", self.cycle) != self.cycle and not excluded

    # -- losses -------------------------------------------------------------------------------------------------

    def _on_node_failed(self, event: m.NodeFailed, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        ignored = self.state is RunState.FINISHING or node.role is Role.EXCLUDED
        if ignored or node.state in DEPARTED or node.state is NodeState.STOPPING:
            return []
        # A node that never joined has no agent to report "gone": treat it as lost.
        self._set_node_state(event.rank, NodeState.FAILED if node.state in CONNECTED else NodeState.LOST)
        if self.state is RunState.RESTARTING and event.phase == policy.RAY_PHASE:
            return []  # that Ray cluster is being ended: its failure is no sign of a bad node
        return self._handle_node_loss(node, end_reasons.failure(node, event.phase, event.reason), now)

    def _on_node_lost(self, event: m.NodeLost, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        if node.state in DEPARTED:
            return []
        phase = self.state.value
        self._set_node_state(event.rank, NodeState.LOST)
        if self.state is RunState.FINISHING:
            return self._maybe_conclude()
        if node.role is Role.EXCLUDED:
            return []
        return self._handle_node_loss(node, replace(end_reasons.failure(node, phase, event.reason), lost=True), now)

    def _handle_node_loss(self, node: RunNode, ended: RunOutcome, now: float) -> list[Command]:
        """React to a node that can no longer be used: continue if the configuration allows it, else end the run."""
        leader, phase = node.rank == self.leader, None if ended.lost else ended.phase
        rest = [replace(n, role=Role.EXCLUDED) if n.rank == node.rank and not leader else n for n in self.nodes]
        if leader and self.state in (RunState.GATHERING, RunState.STARTING):
            self._failed_leader = ended, phase
            return self._yield_or_end(now)
        if self._failed_leader is not None:
            return self._exclude(node.rank) + self._yield_or_end(now)
        if self.state in (RunState.GATHERING, RunState.RESTARTING):
            pool = roles.possible_pool if self.state is RunState.GATHERING else roles.usable_pool
            left = pool(rest, self.config, self.leader)
            if leader or not left.sufficient:
                recovering = not leader and (self.config.spares or self.cycle)
                why = end_reasons.too_few(self.config, rest, left) if recovering else ""
                return self._finish(end_reasons.because(ended, why), now, FAILURE_GRACE_S)
            return self._exclude(node.rank) + self._maybe_close(now)
        if node.role is Role.SPARE:
            return self._exclude(node.rank)
        decision = policy.after_loss(self._failure_context(rest), node, phase)
        if decision.action is not Action.REPLACE:
            excluded = self._exclude(node.rank) if decision.action is Action.RESTART and not leader else []
            return excluded + self._restart_or_end(decision, ended, now, self.config.restart_grace)
        return self._exclude(node.rank) + self._promote(node, now)

    def _yield_or_end(self, now: float) -> list[Command]:
        """Step down after the leader's own node failed before the driver, once enough nodes can elect another leader.

        If it left earlier, no member would know of the run.
        """
        assert self._failed_leader is not None
        ended, phase = self._failed_leader
        decision = policy.after_loss(self._failure_context(self.nodes), self.nodes[self.leader], phase)
        if decision.action is not Action.YIELD:
            return self._finish(end_reasons.because(ended, decision.reason), now, FAILURE_GRACE_S)
        if self.state is RunState.GATHERING and self._pending and self._available <= self._pending:
            return []
        self._set_run_state(RunState.YIELDED)
        self.deadline = None
        return [m.Yield(ended.end_reason)]

    def _maybe_close(self, now: float) -> list[Command]:
        if self._failed_leader is not None and self.state is RunState.GATHERING:
            return self._yield_or_end(now)
        return super()._maybe_close(now)

    def _promote(self, lost: RunNode, now: float) -> list[Command]:
        """Promote the nearest spare to the rank of the lost node. Before the driver runs this is part of starting."""
        spare = roles.pick_replacement(self.nodes, lost, self.config.segment)
        assert spare is not None
        self._set_role(spare.rank, Role.ACTIVE, lost.logical)
        if self.state is RunState.RUNNING:
            self.deadline = now + self.config.start_timeout
        return self._start_node(spare.rank) + self._maybe_start_driver()

    def _failure_context(self, nodes: Sequence[RunNode]) -> FailureContext:
        without_progress = 0 if self.progressed else self.without_progress + 1
        running = self.state is RunState.RUNNING
        return FailureContext(self.config, nodes, self.leader, running, self.cycle, without_progress)

    def _on_health(self, event: m.Health, now: float) -> list[Command]:
        """Record a health check. An unhealthy node stays connected but gets no rank until a later check passes."""
        node = self.nodes[event.rank]
        unhealthy_reason = None if event.ok else event.reason or "its check failed"
        joined = node.state in CONNECTED or node.state is NodeState.STOPPING
        if not joined or node.role is Role.EXCLUDED or node.unhealthy_reason == unhealthy_reason:
            return []
        self._update_node(replace(node, unhealthy_reason=unhealthy_reason))
        self.changes.append(self.nodes[event.rank])
        return self._maybe_close(now) + self._end_if_too_few(now)

    def _end_if_too_few(self, now: float) -> list[Command]:
        """End the run if too few nodes are available and none is pending."""
        if self.state is not RunState.GATHERING or self._pending or self._enough_available():
            return []
        available = roles.available_pool(self.nodes, self.config, self.leader)
        return self._finish(end_reasons.too_few_arrived(self.config, self.nodes, available), now, FAILURE_GRACE_S)

    def _exclude(self, rank: int) -> list[Command]:
        self._set_role(rank, Role.EXCLUDED)
        return self._stop_node(rank)

    def _on_driver_ended(self, event: m.DriverEnded, now: float) -> list[Command]:
        if not self.driver_running:
            return []
        self.driver_running = False
        if self.state is RunState.RESTARTING:
            return self._next_cycle(now)
        if self.outcome is not None and self.outcome.state == "stopped":
            self.outcome = replace(self.outcome, exit_code=event.code)
        ended = RunOutcome("succeeded" if event.code == 0 else "failed", event.code, f"the driver {event.how}")
        if self.state is not RunState.RUNNING or event.code == 0:
            return self._finish(ended, now, 0.0)
        return self._restart_or_end(policy.after_driver_failure(self._failure_context(self.nodes)), ended, now, 0.0)

    def _on_driver_stalled(self, event: m.DriverStalled, now: float) -> list[Command]:
        if not self.driver_running or self.state is RunState.RESTARTING:
            return []
        ended = RunOutcome("failed", INFRASTRUCTURE_FAILED, event.reason, phase="stalled")
        if self.state is not RunState.RUNNING:
            return self._finish(ended, now, FAILURE_GRACE_S)
        decision = policy.after_driver_failure(self._failure_context(self.nodes))
        return self._restart_or_end(decision, ended, now, FAILURE_GRACE_S)

    def _restart_or_end(self, decision: Decision, ended: RunOutcome, now: float, grace: float) -> list[Command]:
        """Begin a new cycle after the driver's grace period, or end the run with the reason why it cannot continue."""
        if decision.action is Action.END:
            return self._finish(_final_outcome(ended, decision), now, min(grace, FAILURE_GRACE_S))
        self.restart_reason = ended.end_reason
        self._set_run_state(RunState.RESTARTING)
        if not self.driver_running:
            return self._next_cycle(now)
        self.deadline = now + grace + FINISH_TIMEOUT_S
        return [EndDriver(grace)]

    def _next_cycle(self, now: float) -> list[Command]:
        """Begin the next cycle after the driver has ended: every remaining node stops Ray and rejoins when clean."""
        self.cycle += 1
        self.without_progress, self.progressed = 0 if self.progressed else self.without_progress + 1, False
        self.head_up, self.last_call = False, None
        self.deadline = now + self.config.gather_timeout
        self._set_run_state(RunState.GATHERING)
        commands: list[Command] = [m.BeginCycle()]
        for node in [node for node in self.nodes if node.role is not Role.EXCLUDED]:
            self._set_role(node.rank, Role.WAITING)
            late = node.state is NodeState.STOPPING  # for an earlier cycle: its report for that one is ignored
            commands += [StopNode(node.rank)] if late else self._stop_node(node.rank)
        return commands

    # -- ending -------------------------------------------------------------------------------------------------

    def _on_node_gone(self, event: m.NodeGone, now: float) -> list[Command]:
        """Handle the report of a clean node: it joins the next cycle, or has left if there is none for it."""
        node = self.nodes[event.rank]
        if node.state is NodeState.STOPPING and self.state is not RunState.FINISHING and node.role is not Role.EXCLUDED:
            self._set_node_state(event.rank, NodeState.ARRIVED)
            return [m.Rejoin(event.rank), *self._join_cycle(event.rank, now)]
        self._set_node_state(event.rank, NodeState.GONE)
        return self._maybe_conclude()

    def _check_deadline(self, now: float) -> list[Command]:
        closed = self._maybe_close(now)
        if closed or self.deadline is None or now < self.deadline:
            return closed
        if self.state is RunState.GATHERING and self._failed_leader is not None:
            ended, _ = self._failed_leader
            why = "too few other nodes joined to elect another leader"
            return self._finish(end_reasons.because(ended, why), now, 0.0)
        if self.state is RunState.GATHERING:
            available = roles.available_pool(self.nodes, self.config, self.leader)
            return self._finish(end_reasons.gather_timed_out(self.config, self.nodes, self.cycle, available), now, 0.0)
        if self.state in (RunState.STARTING, RunState.RUNNING):
            return self._fail_late_nodes(now)
        if self.outcome is None:  # restarting: no next cycle before the driver has ended
            self._finish(RunOutcome("failed", INFRASTRUCTURE_FAILED, self.restart_reason, phase="restarting"), now, 0.0)
        assert self.outcome is not None
        stopping = [node.host for node in self.nodes if node.state is NodeState.STOPPING]
        unclean = f"{end_reasons.listed(stopping)} did not confirm cleanup"
        if self.driver_running:
            unclean = "the driver did not end"
        self.outcome = end_reasons.because(self.outcome, unclean)
        return self._conclude()

    def _fail_late_nodes(self, now: float) -> list[Command]:
        """Fail the nodes on which Ray did not start in time: spares replace them if possible.

        Nodes that only wait for the head are not late. The leader comes first.
        """
        unready = [node for node in self._active() if node.state is not NodeState.READY]
        started = [node for node in unready if node.state is NodeState.STARTING] or unready
        late = sorted(started, key=lambda node: node.rank != self.leader)
        reason = end_reasons.too_late(self.config, late)
        self.deadline = now + self.config.start_timeout
        commands: list[Command] = []
        for node in late:
            if self.outcome is None and self.state is not RunState.YIELDED:
                commands += self._handle_node_loss(node, end_reasons.failure(node, self.state.value, reason), now)
        return commands


def _final_outcome(ended: RunOutcome, decision: Decision) -> RunOutcome:
    """Add the decision's reason, and its exit code if it has one."""
    ended = ended if decision.exit_code is None else replace(ended, exit_code=decision.exit_code)
    return end_reasons.because(ended, decision.reason)
