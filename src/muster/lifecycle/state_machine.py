"""The state machine of a run: gather the nodes, start Ray, run the driver, recover from failures, end everything.

It has no I/O, clock or randomness: an event and the time go in, a Transition comes out. states.py has the transition
tables, roles.py the roles, policy.py the decisions after a loss, services.py the service instances. Events that do not
fit the current state, or belong to another cycle, are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from muster.exit_codes import BY_SIGNAL
from muster.lifecycle import end_reasons, policy, roles
from muster.lifecycle import events as m
from muster.lifecycle.config import (
    EXTERNAL_LEADER,
    FAILURE_GRACE_S,
    FINISH_TIMEOUT_S,
    FIRST_TERM_START,
    RunConfig,
    TermStart,
)
from muster.lifecycle.control import CONTROL_PHASE, ControlState, restart_requested
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.gathering import GatheringRound
from muster.lifecycle.node_table import NodeTable
from muster.lifecycle.policy import Action, Decision, FailureContext
from muster.lifecycle.roles import Role, RunNode
from muster.lifecycle.service_rules import ServiceRules
from muster.lifecycle.services import Services
from muster.lifecycle.states import CONNECTED, DEPARTED, ENDED, RUN_TRANSITIONS, SERVING_STATES, NodeState, RunState
from muster.lifecycle.topology import UNKNOWN_LOCATION
from muster.lifecycle.transition import NO_TRANSITION, Transition, TransitionBuilder

__all__ = ["FAILURE_GRACE_S", "FINISH_TIMEOUT_S", "RunConfig", "RunNode", "RunStateMachine", "Transition"]


class RunStateMachine:
    """The state of one run under one leader. `start` and `handle` return what follows; the edge executes it.

    The methods are in the order of a run's life: nodes arrive, the round closes, Ray starts, services and the driver
    run, nodes are lost, the next cycle begins, the run finishes. No event costs a scan of all nodes, except those that
    begin or end a cycle.
    """

    def __init__(self, config: RunConfig, now: float, term_start: TermStart = FIRST_TERM_START) -> None:
        """Prepare a term that starts at `now`. Call `start` before the first event."""
        assert term_start.leader != EXTERNAL_LEADER or not config.ray, "Ray's head is on the leader's node"
        self.config = config
        self.leader = term_start.leader
        self.state = RunState.GATHERING
        self.deadline: float | None = now + config.gather_timeout  # of the current state
        self.outcome: RunOutcome | None = None
        # The current cycle.
        self.cycle = term_start.cycle
        self.restart_reason = term_start.reason  # why the current cycle follows the previous one
        self.without_progress = term_start.without_progress  # consecutive cycles without progress before this one
        self.progressed = False
        self.head_up = False
        self.driver_running = False
        # The nodes and services.
        self._results = TransitionBuilder()  # of the current event
        self.services = Services(config.services, config.active_nodes)
        initial_nodes = roles.initial_nodes(config, term_start.excluded, term_start.roster)
        self.table = NodeTable(config, initial_nodes, self.services, self._results)
        self.nodes, self._sets = self.table.nodes, self.table.sets  # by node index; both change only in the table
        self.round = GatheringRound(config, self._sets, self.leader)
        self._service_rules = ServiceRules(config, self.services, self.table, self._results)
        self.control = ControlState(term_start.leaving, term_start.no_restart)
        # The leader.
        self._previous_leader, self._handed_over = term_start.lost, term_start.handed_over
        self._handovers = term_start.handovers
        self._failed_leader: tuple[RunOutcome, str | None] | None = None  # outcome and phase, before the driver ran

    @property
    def members(self) -> set[int]:
        """The nodes that have joined, have not left and are not excluded. Do not change the set."""
        return self._sets.members

    @property
    def excluded(self) -> set[int]:
        """The excluded nodes. Do not change the set."""
        return self._sets.excluded

    @property
    def membership_version(self) -> int:
        """A number that grows when a node joins, leaves or is excluded."""
        return self._sets.membership_version

    def has_left(self, node_index: int) -> bool:
        """Return whether the node is gone or lost."""
        return self.nodes[node_index].state in DEPARTED

    # -- a term and its events ----------------------------------------------------------------------------------

    def start(self, now: float) -> Transition:
        """Start the term. A later leader continues the run or, if that is not allowed, ends it."""
        self._results.changes.append(self.state)
        if self._previous_leader is not None:
            decide = policy.after_handover if self._handed_over else policy.after_leader_loss
            restarts = self.cycle - 1 - self._handovers
            context = replace(self._failure_context(), restarts=restarts, without_progress=self.without_progress)
            decision = self.control.restrict(decide(context))
            if decision.action is Action.END:
                lost = self.nodes[self._previous_leader]
                self.outcome = decision.outcome(end_reasons.loss(lost, "lead", self.restart_reason))
                self._set_run_state(RunState.FINISHING)
                self.deadline = now + FINISH_TIMEOUT_S
        return self._results.take()

    def handle(self, event: m.Event, now: float) -> Transition:
        """Handle one event and return everything that follows from it."""
        if self.state in ENDED or self._is_stale(event):
            return NO_TRANSITION
        before = self.outcome
        _HANDLERS[type(event)](self, event, now)
        self._service_rules.start(now, self.cycle, self.state)
        if self.outcome is not before:
            self._results.set_outcome(self.outcome, self.deadline)
        return self._results.take()

    def _is_stale(self, event: m.Event) -> bool:
        """Return whether the event belongs to another cycle. A `gone` of an excluded node is valid in any cycle."""
        excluded = isinstance(event, m.NodeGone) and event.node_index in self._sets.excluded
        return getattr(event, "cycle", self.cycle) != self.cycle and not excluded

    # -- nodes arrive -------------------------------------------------------------------------------------------

    def _on_arrived(self, event: m.Arrived, now: float) -> None:
        node = self.nodes[event.node_index]
        if node.state is NodeState.EXPECTED:
            location = event.location if self.config.topology else UNKNOWN_LOCATION
            self.table.update(replace(node, host=event.host, location=location))
            self.table.set_state(event.node_index, NodeState.ARRIVED)
            self._join_cycle(event.node_index, now)
        self._end_if_too_few(now)

    def _join_cycle(self, node_index: int, now: float) -> None:
        """Add an arrived node to the cycle: as a spare once the round has closed. The first head starts at once."""
        if self.state is RunState.FINISHING:
            self._stop_node(node_index)
        elif node_index in self.control.leaving:
            self._drop_leaving_node(self.nodes[node_index], now)
        elif self.state is not RunState.GATHERING:
            self.table.set_role(node_index, Role.SPARE)
            self._fill_open_ranks(now)
        else:
            if node_index == self.leader and self.cycle == 0:
                self.table.set_role(node_index, Role.ACTIVE, 0)
            if self.nodes[node_index].role is Role.ACTIVE:
                self._start_node(node_index)
            self._maybe_close(now)

    def _on_health(self, event: m.Health, now: float) -> None:
        """Record a health check. An unhealthy node stays connected but gets no rank until a later check passes."""
        node = self.nodes[event.node_index]
        unhealthy_reason = None if event.ok else event.reason or "its check failed"
        if event.node_index not in self._sets.members or node.unhealthy_reason == unhealthy_reason:
            return
        self.table.update(replace(node, unhealthy_reason=unhealthy_reason))
        self._results.changes.append(self.nodes[event.node_index])
        self._maybe_close(now)
        self._fill_open_ranks(now)
        self._end_if_too_few(now)

    # -- the round closes ---------------------------------------------------------------------------------------

    def _maybe_close(self, now: float) -> None:
        """Close the round if enough nodes are available and no other one is awaited any longer."""
        if self.state is not RunState.GATHERING:
            return
        if self._failed_leader is not None:
            self._yield_or_end(now)
            return
        assert self.deadline is not None
        if not self.round.may_close(now, self.deadline):
            return
        for node in self.round.close(self.nodes):
            self.table.change_role(node)
        self.services.set_nodes(self.round.size)
        self._set_run_state(RunState.STARTING)
        self.deadline = now + self.config.start_timeout
        for active in self.table.active(NodeState.ARRIVED):
            self._start_node(active.node_index)
        self._maybe_start_driver(now)

    def _end_if_too_few(self, now: float) -> None:
        """End the run if too few nodes are available and none is pending."""
        if self.state is not RunState.GATHERING or self._sets.pending or self._sets.enough_available(self.leader):
            return
        available = roles.available_pool(self.nodes, self.config, self.leader)
        self._finish(end_reasons.too_few_arrived(self.config, self.nodes, available), now, FAILURE_GRACE_S)

    # -- Ray starts ---------------------------------------------------------------------------------------------

    def _start_node(self, node_index: int, replaces: int | None = None) -> None:
        """Start Ray on an active node; workers wait for the head. `replaces`: the lost node whose rank it takes."""
        if not self.config.ray or node_index in self.config.without_ray:
            self.table.set_state(node_index, NodeState.READY)
        elif node_index == self.leader:
            self.table.set_state(node_index, NodeState.STARTING)
            self._results.commands.append(m.StartHead(node_index, self.cycle))
        elif self.head_up:
            rank = self.nodes[node_index].rank
            assert rank is not None
            self.table.set_state(node_index, NodeState.STARTING)
            self._results.commands.append(m.StartWorker(node_index, rank, self.cycle, replaces))

    def _on_head_up(self, event: m.HeadUp, now: float) -> None:
        if self.config.ray and self.nodes[self.leader].state is NodeState.STARTING:
            self.head_up = True
            for node in self.table.active(NodeState.ARRIVED):
                self._start_node(node.node_index)

    def _on_node_ready(self, event: m.NodeReady, now: float) -> None:
        if self.nodes[event.node_index].state is NodeState.STARTING:
            self.table.set_state(event.node_index, NodeState.READY)
            self._maybe_start_driver(now)

    # -- services -----------------------------------------------------------------------------------------------

    def _on_service_report(self, event: m.ServiceReport, now: float) -> None:
        if self.state not in SERVING_STATES:
            return  # a service may fail because of the failure that the run recovers from
        failed = self._service_rules.report(event, now)
        if failed is not None:
            self._finish(failed, now, FAILURE_GRACE_S)
        else:
            self._maybe_start_driver(now)

    # -- the driver ---------------------------------------------------------------------------------------------

    def _maybe_start_driver(self, now: float) -> None:
        """Start the driver once every active node and every gated service is ready."""
        if self._sets.unready:
            return
        if self.state is RunState.RUNNING:
            self.deadline = None  # every replacement is up
        if self.state is not RunState.STARTING or not self.services.gate_open:
            return
        self._set_run_state(RunState.RUNNING)
        self.deadline = None
        self.driver_running = True
        self._results.commands.append(m.StartDriver(self.cycle))
        self._fill_open_ranks(now)

    def _fill_open_ranks(self, now: float) -> None:
        """Give late nodes the ranks that the cycle began without, once its driver runs. It does not wait for them."""
        while self.state is RunState.RUNNING and (late := self.round.take_rank()) is not None:
            self._promote(*late, now)

    def _on_progress(self, event: m.Progress, now: float) -> None:
        self.progressed = self.progressed or self.driver_running

    def _on_driver_ended(self, event: m.DriverEnded, now: float) -> None:
        if not self.driver_running:
            return
        self.driver_running = False
        succeeded = event.completed and event.code == 0  # whatever was lost before its end was reported
        if self.state is RunState.RESTARTING and not succeeded:
            self._next_cycle(now)
            return
        ended = RunOutcome("succeeded" if event.code == 0 else "failed", event.code, f"the driver {event.how}")
        if self.outcome is not None and self.outcome.state == "stopped":
            self.outcome = replace(self.outcome, exit_code=event.code)
        elif succeeded:
            self.outcome = ended
        if self.state is not RunState.RUNNING or event.code == 0:
            self._finish(ended, now, 0.0)
        else:
            self._restart_or_end(policy.after_driver_failure(self._failure_context()), ended, now, 0.0)

    def _on_driver_stalled(self, event: m.DriverStalled, now: float) -> None:
        if not self.driver_running or self.state is RunState.RESTARTING:
            return
        ended, context = end_reasons.stalled(event.reason), self._failure_context()
        if self.state is not RunState.RUNNING:
            self._finish(ended, now, FAILURE_GRACE_S)
        else:
            self._restart_or_end(policy.after_stall(context, event.restart), ended, now, FAILURE_GRACE_S)

    # -- losses -------------------------------------------------------------------------------------------------

    def _on_node_failed(self, event: m.NodeFailed, now: float) -> None:
        node = self.nodes[event.node_index]
        ignored = self.state is RunState.FINISHING or node.role is Role.EXCLUDED
        if ignored or node.state in DEPARTED or node.state is NodeState.STOPPING:
            return
        # A node that never joined has no agent to report "gone": treat it as lost.
        self.table.set_state(event.node_index, NodeState.FAILED if node.state in CONNECTED else NodeState.LOST)
        if self.state is RunState.RESTARTING and event.phase == policy.RAY_PHASE:
            return  # that Ray cluster is being ended: its failure is no sign of a bad node
        self._handle_node_loss(node, end_reasons.failure(node, event.phase, event.reason), now)

    def _on_node_lost(self, event: m.NodeLost, now: float) -> None:
        node = self.nodes[event.node_index]
        if node.state in DEPARTED:
            return
        phase = self.state.value
        self.table.set_state(event.node_index, NodeState.LOST)
        if self.state is RunState.FINISHING:
            self._maybe_conclude()
        elif node.role is not Role.EXCLUDED:
            blamed = self.nodes[self.leader] if event.isolated else node
            self._handle_node_loss(node, end_reasons.loss(blamed, phase, event.reason), now)

    def _handle_node_loss(self, node: RunNode, ended: RunOutcome, now: float) -> None:
        """React to a node that can no longer be used: continue if the configuration allows it, else end the run."""
        phase = ended.phase if ended.phase == CONTROL_PHASE or not ended.lost else None
        leader = node.node_index == self.leader
        if leader and self.state in (RunState.GATHERING, RunState.STARTING):
            self._failed_leader = ended, phase
            self._yield_or_end(now)
        elif self._failed_leader is not None:
            self._exclude(node.node_index)
            self._yield_or_end(now)
        elif self.state in (RunState.GATHERING, RunState.RESTARTING):
            self._handle_loss_between_drivers(node, ended, now)
        elif node.role is Role.SPARE:
            self._exclude(node.node_index)
        elif self.round.is_joining(node):
            self._exclude_joining(node, now)
        else:
            decision = policy.after_loss(self._failure_context(), node, phase)
            if decision.action is Action.REPLACE:
                self._replace(node, decision, now)
                return
            if decision.action is Action.RESTART and not leader:
                self._exclude(node.node_index)
            self._restart_or_end(decision, ended, now, self.config.restart_grace)

    def _exclude_joining(self, node: RunNode, now: float) -> None:
        """Exclude a node that the driver does not use yet. Another late node may get its rank."""
        assert node.rank is not None
        self._exclude(node.node_index)
        self.round.return_rank(node.rank)
        self._fill_open_ranks(now)
        self._maybe_start_driver(now)

    def _handle_loss_between_drivers(self, node: RunNode, ended: RunOutcome, now: float) -> None:
        """Continue without the node if the others suffice for the cycle that gathers, or the next one."""
        context = self._failure_context()
        if node.node_index == self.leader:  # in `restarting`: the leader cannot lead the next cycle
            self._finish(ended, now, FAILURE_GRACE_S)
            return
        shortage = policy.shortage_between_drivers(context, self.state is RunState.GATHERING, node.node_index)
        if shortage is None:
            self._exclude(node.node_index)
            self._maybe_close(now)
        else:
            recovering = self.config.has_surplus or self.cycle
            self._finish(end_reasons.because(ended, shortage if recovering else ""), now, FAILURE_GRACE_S)

    def _failure_context(self) -> FailureContext:
        without_progress = 0 if self.progressed else self.without_progress + 1
        running, restarts = self.state is RunState.RUNNING, self.cycle - self._handovers
        nodes, sets, leaving = self.nodes, self._sets, frozenset(self.control.leaving)
        return FailureContext(self.config, nodes, sets, self.leader, running, restarts, without_progress, leaving)

    def _replace(self, node: RunNode, decision: Decision, now: float) -> None:
        assert decision.replacement is not None and node.rank is not None
        self._exclude(node.node_index)
        self._promote(decision.replacement, node.rank, now, node.node_index)

    def _promote(self, spare: int, rank: int, now: float, replaces: int | None = None) -> None:
        """Give a spare this rank, which the node `replaces` had. Before the driver runs this is part of starting."""
        self.table.set_role(spare, Role.ACTIVE, rank)
        if self.state is RunState.RUNNING:
            self.deadline = now + self.config.start_timeout
        self._start_node(spare, replaces)
        self._maybe_start_driver(now)

    def _exclude(self, node_index: int) -> None:
        self.table.set_role(node_index, Role.EXCLUDED)
        self._stop_node(node_index)

    def _fail_late_nodes(self, now: float) -> None:
        """Fail the nodes on which Ray did not start in time: spares replace them if possible.

        Nodes that only wait for the head are not late. The leader comes first.
        """
        late = roles.late_nodes(self.table.active(), self.leader)
        reason = end_reasons.too_late(self.config, late)
        self.deadline = now + self.config.start_timeout
        for node in late:
            if self.outcome is None and self.state is not RunState.YIELDED:
                self._handle_node_loss(node, end_reasons.failure(node, self.state.value, reason), now)

    def _yield_or_end(self, now: float) -> None:
        """Step down after the leader's own node failed before the driver, once enough nodes can elect another leader.

        If it left earlier, no member would know about the run.
        """
        assert self._failed_leader is not None
        ended, phase = self._failed_leader
        decision = policy.after_leader_failure(self._failure_context(), phase, self.state is RunState.GATHERING)
        if decision is None:
            return
        if decision.replacement is None:
            self._finish(end_reasons.because(ended, decision.reason), now, FAILURE_GRACE_S)
            return
        self._set_run_state(RunState.YIELDED)
        self.deadline = None
        self._results.commands.append(m.Yield(ended.end_reason, decision.replacement))

    # -- control requests ---------------------------------------------------------------------------------------

    def _on_exclusion_requested(self, event: m.ExclusionRequested, now: float) -> None:
        node = self.nodes[event.node_index]
        if self.state is RunState.FINISHING or node.role is Role.EXCLUDED or node.state in DEPARTED:
            return
        self.control.exclude(event.node_index, event.reason)
        if self.state in (RunState.GATHERING, RunState.STARTING) or node.role is Role.SPARE:
            self._drop_leaving_node(node, now)
        elif self.state is RunState.RUNNING and event.at_once:
            decision = policy.after_exclusion(self._failure_context(), node)
            if decision.action is Action.REPLACE:
                self._replace(node, decision, now)
            else:  # the driver has its grace period on all nodes; the next cycle begins without this one
                self._restart_or_end(decision, self.control.departure(node), now, self.config.restart_grace)

    def _drop_leaving_node(self, node: RunNode, now: float) -> None:
        """Exclude a node on which no driver runs. One that is being cleaned is excluded when it is clean."""
        if node.state in CONNECTED:
            self.table.set_state(node.node_index, NodeState.FAILED)
            self._handle_node_loss(node, self.control.departure(node), now)

    def _on_restart_forbidden(self, event: m.RestartForbidden, now: float) -> None:
        self.control.forbid(event.reason)
        if self.state is RunState.RESTARTING:
            decision = self.control.restrict(Decision(Action.RESTART))
            self._finish(decision.outcome(end_reasons.restart_failed(self.restart_reason)), now, FAILURE_GRACE_S)

    def _on_restart_requested(self, event: m.RestartRequested, now: float) -> None:
        if self.state is RunState.RUNNING:
            decision = policy.after_restart_cause(self._failure_context())
            self._restart_or_end(decision, restart_requested(event.reason), now, self.config.restart_grace)

    # -- the next cycle -----------------------------------------------------------------------------------------

    def _restart_or_end(self, decision: Decision, ended: RunOutcome, now: float, grace: float) -> None:
        """Begin a new cycle after the driver's grace period, or end the run with the reason why it cannot continue."""
        decision = self.control.restrict(decision)
        if decision.action is Action.END:
            self._finish(decision.outcome(ended), now, min(grace, FAILURE_GRACE_S))
            return
        self.restart_reason = ended.end_reason
        self._set_run_state(RunState.RESTARTING)
        if self.driver_running:
            self.deadline = now + grace + FINISH_TIMEOUT_S
            self._results.commands.append(m.EndDriver(grace, self.cycle))
        else:
            self._next_cycle(now)

    def _next_cycle(self, now: float) -> None:
        """Begin the next cycle after the driver has ended: every remaining node stops Ray and rejoins when clean."""
        self.cycle += 1
        self.without_progress, self.progressed = 0 if self.progressed else self.without_progress + 1, False
        self.head_up = False
        self.round.begin()
        self.deadline = now + self.config.gather_timeout
        self._set_run_state(RunState.GATHERING)
        self._results.commands.append(m.BeginCycle(self.cycle, self.restart_reason))
        for node in list(self.nodes):
            if node.role is Role.EXCLUDED:
                continue
            if node.node_index in self.control.leaving:
                if node.node_index != self.leader:
                    self._exclude(node.node_index)
                    continue
                self._failed_leader = self.control.departure(node), CONTROL_PHASE  # it hands over, once it is clean
            if node.state is NodeState.EXPECTED:  # it missed a round, and stays a spare
                continue
            self.table.set_role(node.node_index, Role.WAITING)
            if node.state is NodeState.STOPPING:  # for an earlier cycle: its report for that one is ignored
                self._results.commands.append(self._stop_command(node.node_index))
            else:
                self._stop_node(node.node_index)
        self._end_if_too_few(now)

    def _stop_node(self, node_index: int) -> None:
        if self.nodes[node_index].state in CONNECTED:
            self.table.set_state(node_index, NodeState.STOPPING)
            self._results.commands.append(self._stop_command(node_index))

    def _stop_command(self, node_index: int) -> m.StopNode:
        return m.StopNode(node_index, self.cycle, self.outcome, self.deadline)

    def _on_node_gone(self, event: m.NodeGone, now: float) -> None:
        """Handle the report of a clean node: it joins the next cycle, or has left if there is none for it."""
        node = self.nodes[event.node_index]
        if node.state is NodeState.STOPPING and self.state is not RunState.FINISHING and node.role is not Role.EXCLUDED:
            self.table.set_state(event.node_index, NodeState.ARRIVED)
            self._results.commands.append(m.Rejoin(event.node_index, self.cycle))
            self._join_cycle(event.node_index, now)
        else:
            self.table.set_state(event.node_index, NodeState.GONE)
            self._maybe_conclude()
        self._end_if_too_few(now)

    # -- the run finishes ---------------------------------------------------------------------------------------

    def _on_stop_requested(self, event: m.StopRequested, now: float) -> None:
        self._finish(RunOutcome("stopped", BY_SIGNAL + event.signal, event.reason), now, event.grace)

    def _finish(self, outcome: RunOutcome, now: float, grace: float) -> None:
        """Record the outcome unless one is recorded; end the driver, or the nodes if it has ended."""
        if self.outcome is None:
            self.outcome = outcome
        first, ending = self.state is not RunState.FINISHING, self.state in (RunState.FINISHING, RunState.RESTARTING)
        if first:
            self._set_run_state(RunState.FINISHING)
        if self.driver_running:
            # A later reason may shorten the deadline, but never extend it.
            ends = now + grace + FINISH_TIMEOUT_S
            if not ending or (self.deadline is not None and ends < self.deadline):
                self.deadline = ends
                self._results.commands.append(m.EndDriver(grace, self.cycle))
            return
        if first:
            self.deadline = now + FINISH_TIMEOUT_S
        for node_index in range(len(self.nodes)):
            self._stop_node(node_index)
        self._maybe_conclude()

    def _maybe_conclude(self) -> None:
        """Conclude when every node that joined has left."""
        if self.state is RunState.FINISHING and not self.driver_running and not self._sets.joined:
            self._conclude()

    def _conclude(self) -> None:
        assert self.outcome is not None
        self._set_run_state(RunState(self.outcome.state))
        self.deadline = None
        self._results.commands.append(m.Conclude(self.outcome))

    # -- time passes --------------------------------------------------------------------------------------------

    def _on_tick(self, event: m.Tick, now: float) -> None:
        failed = self._service_rules.check_deadlines(now) if self.state in SERVING_STATES else None
        if failed is not None:
            self._finish(failed, now, FAILURE_GRACE_S)
        before = self.state
        self._maybe_close(now)
        if self.state is before and self.deadline is not None and now >= self.deadline:
            self._deadline_passed(now)

    def _deadline_passed(self, now: float) -> None:
        """End what has not been reached in time: the round, the start of Ray, the end of the driver or of the run."""
        if self.state is RunState.GATHERING and self._failed_leader is not None:
            ended, _ = self._failed_leader
            self._finish(end_reasons.because(ended, end_reasons.NO_OTHER_LEADER), now, 0.0)
        elif self.state is RunState.GATHERING:
            available = roles.available_pool(self.nodes, self.config, self.leader)
            self._finish(end_reasons.gather_timed_out(self.config, self.nodes, self.cycle, available), now, 0.0)
        elif self.state in (RunState.STARTING, RunState.RUNNING):
            self._fail_late_nodes(now)
        else:
            self._conclude_late(now)

    def _conclude_late(self, now: float) -> None:
        """End the run although the driver, or nodes, have not confirmed their end."""
        if self.outcome is None:  # restarting: no next cycle before the driver has ended
            self.outcome = end_reasons.restart_failed(self.restart_reason)
            self._set_run_state(RunState.FINISHING)
        self.outcome = end_reasons.because(self.outcome, end_reasons.unclean(self.nodes, self.driver_running))
        self._conclude()

    def _set_run_state(self, state: RunState) -> None:
        assert state in RUN_TRANSITIONS[self.state], f"{self.state.value} -> {state.value}"
        self.state = state
        self._results.changes.append(state)


_HANDLERS: dict[type, Callable[[RunStateMachine, Any, float], None]] = {
    m.Arrived: RunStateMachine._on_arrived,
    m.Health: RunStateMachine._on_health,
    m.HeadUp: RunStateMachine._on_head_up,
    m.NodeReady: RunStateMachine._on_node_ready,
    m.ServiceReport: RunStateMachine._on_service_report,
    m.Progress: RunStateMachine._on_progress,
    m.DriverEnded: RunStateMachine._on_driver_ended,
    m.DriverStalled: RunStateMachine._on_driver_stalled,
    m.NodeFailed: RunStateMachine._on_node_failed,
    m.NodeLost: RunStateMachine._on_node_lost,
    m.NodeGone: RunStateMachine._on_node_gone,
    m.ExclusionRequested: RunStateMachine._on_exclusion_requested,
    m.RestartForbidden: RunStateMachine._on_restart_forbidden,
    m.RestartRequested: RunStateMachine._on_restart_requested,
    m.StopRequested: RunStateMachine._on_stop_requested,
    m.Tick: RunStateMachine._on_tick,
}
