"""The protocol of a run: gather the nodes, bring Ray up, run the driver, mend what the plan lets mend, end everything.

A state machine without I/O, clock or randomness: events and the time go in, commands come out. The states and their
moves are the tables in states.py, the roles those in roles.py, what follows a loss is in policy.py. An event that does
not fit the present state, or belongs to another cycle, changes nothing.
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
    """Feed it events with `handle`; carry out the commands it returns."""

    def __init__(self, plan: RunConfig, now: float, term_start: TermStart = FIRST_TERM_START) -> None:
        """A later leader goes on with the next cycle; or, where the plan does not allow that, begins with the end."""
        super().__init__(plan, now, term_start)
        self._failed_leader: tuple[RunOutcome, str | None] | None = None  # how and in which phase, before the driver
        if term_start.lost is None:
            return
        situation = FailureContext(
            plan, self.nodes, self.leader, False, term_start.cycle - 1, term_start.without_progress
        )
        verdict = policy.after_leader_loss(situation)
        if verdict.step is Action.END:
            ended = replace(end_reasons.failure(self.nodes[term_start.lost], "lead", term_start.reason), lost=True)
            self.outcome = _judged(ended, verdict)
            self._move_run(RunState.FINISHING)
            self.deadline = now + FINISH_TIMEOUT_S

    def handle(self, event: m.Event, now: float) -> list[Command]:
        """Take one event; return what is to be done because of it."""
        if self.state in ENDED or self._is_stale(event):
            return []
        return self._look_at_services(event, now) + self._handle(event, now) + self._begin_services(now)

    def _handle(self, event: m.Event, now: float) -> list[Command]:
        if isinstance(event, m.Tick):
            return self._check_deadline(now)
        if isinstance(event, m.Arrived):
            return self._arrived(event, now) + self._give_up(now)
        if isinstance(event, m.HeadUp):
            return self._head_is_up()
        if isinstance(event, m.NodeReady):
            return self._ready(event)
        if isinstance(event, m.NodeFailed):
            return self._failed(event, now)
        if isinstance(event, m.NodeLost):
            return self._lost(event, now)
        if isinstance(event, m.DriverEnded):
            return self._driver_ended(event, now)
        if isinstance(event, m.DriverStalled):
            return self._stalled(event, now)
        if isinstance(event, m.StopRequested):
            ended = RunOutcome("stopped", BY_SIGNAL + event.signal, event.reason)
            return self._finish(ended, now, event.grace)
        if isinstance(event, m.Health):
            return self._checked(event, now)
        if isinstance(event, m.Progress):
            self.progressed = self.progressed or self.driver_running
        if isinstance(event, m.NodeGone):
            return self._gone(event, now) + self._give_up(now)
        return []

    def _is_stale(self, event: m.Event) -> bool:
        """Of another cycle. An excluded node is in none: that it is clean holds whenever it says so."""
        excluded = isinstance(event, m.NodeGone) and self.nodes[event.rank].role is Role.EXCLUDED
        return getattr(event, "cycle", self.cycle) != self.cycle and not excluded

    # -- losses -------------------------------------------------------------------------------------------------

    def _failed(self, event: m.NodeFailed, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        unheard = self.state is RunState.FINISHING or node.role is Role.EXCLUDED
        if unheard or node.state in DEPARTED or node.state is NodeState.STOPPING:
            return []
        # A node that never joined has nobody to report "gone": it is as good as lost.
        self._move_node(event.rank, NodeState.FAILED if node.state in CONNECTED else NodeState.LOST)
        if self.state is RunState.RESTARTING and event.phase == policy.RAY_PHASE:
            return []  # that cluster is being ended: it says nothing of the node
        return self._without(node, end_reasons.failure(node, event.phase, event.reason), now)

    def _lost(self, event: m.NodeLost, now: float) -> list[Command]:
        node = self.nodes[event.rank]
        if node.state in DEPARTED:
            return []
        phase = self.state.value
        self._move_node(event.rank, NodeState.LOST)
        if self.state is RunState.FINISHING:
            return self._maybe_conclude()
        if node.role is Role.EXCLUDED:
            return []
        return self._without(node, replace(end_reasons.failure(node, phase, event.reason), lost=True), now)

    def _without(self, node: RunNode, ended: RunOutcome, now: float) -> list[Command]:
        """A node can no longer be used: go on as the plan allows, or end the run by the node's name."""
        leader, phase = node.rank == self.leader, None if ended.lost else ended.phase
        rest = [replace(n, role=Role.EXCLUDED) if n.rank == node.rank and not leader else n for n in self.nodes]
        if leader and self.state in (RunState.GATHERING, RunState.STARTING):
            self._failed_leader = ended, phase
            return self._yield_or_end(now)
        if self._failed_leader is not None:
            return self._exclude(node.rank) + self._yield_or_end(now)
        if self.state in (RunState.GATHERING, RunState.RESTARTING):
            count = roles.possible if self.state is RunState.GATHERING else roles.usable
            left = count(rest, self.plan, self.leader)
            if leader or not left.enough:
                mending = not leader and (self.plan.spares or self.cycle)
                why = end_reasons.too_few(self.plan, rest, left) if mending else ""
                return self._finish(end_reasons.because(ended, why), now, FAILURE_GRACE_S)
            return self._exclude(node.rank) + self._maybe_close(now)
        if node.role is Role.SPARE:
            return self._exclude(node.rank)
        verdict = policy.after_loss(self._situation(rest), node, phase)
        if verdict.step is not Action.REPLACE:
            excluded = self._exclude(node.rank) if verdict.step is Action.RESTART and not leader else []
            return excluded + self._mend_or_end(verdict, ended, now, self.plan.restart_grace)
        return self._exclude(node.rank) + self._promote(node, now)

    def _yield_or_end(self, now: float) -> list[Command]:
        """The leader's own node failed before there was a driver: another one leads, once enough are here to elect it.

        A leader that left earlier would leave no member behind that knows of the run.
        """
        assert self._failed_leader is not None
        ended, phase = self._failed_leader
        verdict = policy.after_loss(self._situation(self.nodes), self.nodes[self.leader], phase)
        if verdict.step is not Action.YIELD:
            return self._finish(end_reasons.because(ended, verdict.why), now, FAILURE_GRACE_S)
        if self.state is RunState.GATHERING and self._somebody_is_missing() and self._here <= self._missing:
            return []
        self._move_run(RunState.YIELDED)
        self.deadline = None
        return [m.Yield(ended.end_reason)]

    def _maybe_close(self, now: float) -> list[Command]:
        if self._failed_leader is not None and self.state is RunState.GATHERING:
            return self._yield_or_end(now)
        return super()._maybe_close(now)

    def _promote(self, lost: RunNode, now: float) -> list[Command]:
        """The nearest spare takes its rank; before the driver runs that is part of starting."""
        spare = roles.pick_replacement(self.nodes, lost, self.plan.segment)
        assert spare is not None
        self._set_role(spare.rank, Role.ACTIVE, lost.logical)
        if self.state is RunState.RUNNING:
            self.deadline = now + self.plan.start_timeout
        return self._begin(spare.rank) + self._maybe_start_driver()

    def _situation(self, nodes: Sequence[RunNode]) -> FailureContext:
        without_progress = 0 if self.progressed else self.without_progress + 1
        running = self.state is RunState.RUNNING
        return FailureContext(self.plan, nodes, self.leader, running, self.cycle, without_progress)

    def _checked(self, event: m.Health, now: float) -> list[Command]:
        """An unhealthy node stays where it is, but gets no rank until a later check passes."""
        node = self.nodes[event.rank]
        unhealthy_reason = None if event.ok else event.reason or "its check failed"
        joined = node.state in CONNECTED or node.state is NodeState.STOPPING
        if not joined or node.role is Role.EXCLUDED or node.unhealthy_reason == unhealthy_reason:
            return []
        self._put(replace(node, unhealthy_reason=unhealthy_reason))
        self.moves.append(self.nodes[event.rank])
        return self._maybe_close(now) + self._give_up(now)

    def _give_up(self, now: float) -> list[Command]:
        """Everybody who can come is here, and it is not enough: there is nothing to wait for."""
        if self.state is not RunState.GATHERING or self._somebody_is_missing() or self._enough():
            return []
        here = roles.present(self.nodes, self.plan, self.leader)
        return self._finish(end_reasons.short_from_the_start(self.plan, self.nodes, here), now, FAILURE_GRACE_S)

    def _exclude(self, rank: int) -> list[Command]:
        self._set_role(rank, Role.EXCLUDED)
        return self._stop_node(rank)

    def _driver_ended(self, event: m.DriverEnded, now: float) -> list[Command]:
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
        return self._mend_or_end(policy.after_driver_failure(self._situation(self.nodes)), ended, now, 0.0)

    def _stalled(self, event: m.DriverStalled, now: float) -> list[Command]:
        if not self.driver_running or self.state is RunState.RESTARTING:
            return []
        ended = RunOutcome("failed", INFRASTRUCTURE_FAILED, event.reason, phase="stalled")
        if self.state is not RunState.RUNNING:
            return self._finish(ended, now, FAILURE_GRACE_S)
        verdict = policy.after_driver_failure(self._situation(self.nodes))
        return self._mend_or_end(verdict, ended, now, FAILURE_GRACE_S)

    def _mend_or_end(self, verdict: Decision, ended: RunOutcome, now: float, grace: float) -> list[Command]:
        """A new cycle, once the driver has had its grace; or the end, with what keeps the run from going on."""
        if verdict.step is Action.END:
            return self._finish(_judged(ended, verdict), now, min(grace, FAILURE_GRACE_S))
        self.restart_reason = ended.end_reason
        self._move_run(RunState.RESTARTING)
        if not self.driver_running:
            return self._next_cycle(now)
        self.deadline = now + grace + FINISH_TIMEOUT_S
        return [EndDriver(grace)]

    def _next_cycle(self, now: float) -> list[Command]:
        """The driver is gone: everybody who is left ends the old cluster, and comes back clean."""
        self.cycle += 1
        self.without_progress, self.progressed = 0 if self.progressed else self.without_progress + 1, False
        self.head_up, self.last_call = False, None
        self.deadline = now + self.plan.gather_timeout
        self._move_run(RunState.GATHERING)
        commands: list[Command] = [m.BeginCycle()]
        for node in [node for node in self.nodes if node.role is not Role.EXCLUDED]:
            self._set_role(node.rank, Role.WAITING)
            late = node.state is NodeState.STOPPING  # for a cycle before: its word of that will not count
            commands += [StopNode(node.rank)] if late else self._stop_node(node.rank)
        return commands

    # -- ending -------------------------------------------------------------------------------------------------

    def _gone(self, event: m.NodeGone, now: float) -> list[Command]:
        """Clean: for the next cycle, if there is one for this node; else for good."""
        node = self.nodes[event.rank]
        if node.state is NodeState.STOPPING and self.state is not RunState.FINISHING and node.role is not Role.EXCLUDED:
            self._move_node(event.rank, NodeState.ARRIVED)
            return [m.Rejoin(event.rank), *self._take_part(event.rank, now)]
        self._move_node(event.rank, NodeState.GONE)
        return self._maybe_conclude()

    def _check_deadline(self, now: float) -> list[Command]:
        closed = self._maybe_close(now)
        if closed or self.deadline is None or now < self.deadline:
            return closed
        if self.state is RunState.GATHERING and self._failed_leader is not None:
            ended, _ = self._failed_leader
            return self._finish(
                end_reasons.because(ended, "too few other nodes came to elect another leader"), now, 0.0
            )
        if self.state is RunState.GATHERING:
            here = roles.present(self.nodes, self.plan, self.leader)
            return self._finish(end_reasons.nobody_came(self.plan, self.nodes, self.cycle, here), now, 0.0)
        if self.state in (RunState.STARTING, RunState.RUNNING):
            return self._too_late(now)
        if self.outcome is None:  # restarting: without a word from the driver there is no next cycle
            self._finish(RunOutcome("failed", INFRASTRUCTURE_FAILED, self.restart_reason, phase="restarting"), now, 0.0)
        assert self.outcome is not None
        held = [node.host for node in self.nodes if node.state is NodeState.STOPPING]
        unclean = (
            "the driver did not end"
            if self.driver_running
            else f"{end_reasons.listed(held)} did not confirm to be clean"
        )
        self.outcome = end_reasons.because(self.outcome, unclean)
        return self._conclude()

    def _too_late(self, now: float) -> list[Command]:
        """Nodes on which Ray is not up in time are as good as failed: spares take their ranks, where there are any.

        Who only waits for the head is not late; the leader is the first to be judged.
        """
        unready = [node for node in self._active() if node.state is not NodeState.READY]
        begun = [node for node in unready if node.state is NodeState.STARTING] or unready
        late = sorted(begun, key=lambda node: node.rank != self.leader)
        reason = end_reasons.too_late(self.plan, late)
        self.deadline = now + self.plan.start_timeout
        commands: list[Command] = []
        for node in late:
            if self.outcome is None and self.state is not RunState.YIELDED:
                commands += self._without(node, end_reasons.failure(node, self.state.value, reason), now)
        return commands


def _judged(ended: RunOutcome, verdict: Decision) -> RunOutcome:
    """With what keeps the run from going on, and the exit code where that has one of its own."""
    ended = ended if verdict.code is None else replace(ended, exit_code=verdict.code)
    return end_reasons.because(ended, verdict.why)
