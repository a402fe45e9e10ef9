"""The decision after a node is lost or the driver fails. Pure functions.

lost or failed             when                   decision
an active node             before the driver      promote a spare; without one, a new cycle if the job may begin with
                                                  fewer nodes, as below; else end the run
an active node             running, fail          end the run
an active node             running, replace       promote a spare; without one, end the run
an active node             running, restart       a new cycle, if the restart budget and the nodes suffice and there was
                                                  progress; else end the run
Ray on the leader's node   running, restart       the same; under any other policy end the run
Ray on the leader's node   before the driver      yield to another node, which begins a new cycle, if the nodes
                                                  suffice; no restart is counted, since no driver ran
the leader's agent         any                    with a majority of the others a new cycle, as above; else end the run
the driver                 running                a new cycle where configured, as above; else end the run
a node that a program      running                as after the loss of an active node; the leader's own node hands over
excludes                                          in the new cycle (restart), or ends the run

Losses of spares, and losses while nodes gather, need no decision: the state machine handles them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from muster.exit_codes import NO_PROGRESS
from muster.lifecycle import end_reasons
from muster.lifecycle.config import EXTERNAL_LEADER, FAIL, REPLACE, RESTART, RunConfig
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.node_sets import NodeSets
from muster.lifecycle.roles import NodePool, Role, RunNode, possible_pool, usable_pool

RAY_PHASE = "ray"  # the phase of a failure of Ray, as opposed to one of the agent


class Action(str, Enum):
    """The reaction to a loss or failure."""

    END = "end"
    REPLACE = "replace"
    RESTART = "restart"
    YIELD = "yield"


@dataclass(frozen=True)
class Decision:
    """The action, with what it needs."""

    action: Action
    reason: str = ""  # END: why no other action is possible
    exit_code: int | None = None  # END: overrides the exit code of the failure
    replacement: int | None = None  # node index of the spare to promote (REPLACE), or of the next leader (YIELD)

    def outcome(self, ended: RunOutcome) -> RunOutcome:
        """Return the outcome of a run that ended so, with this decision's reason, and its exit code if it has one."""
        ended = ended if self.exit_code is None else replace(ended, exit_code=self.exit_code)
        return end_reasons.because(ended, self.reason)


@dataclass(frozen=True)
class FailureContext:
    """The state of the run on which a decision depends, besides the failure itself."""

    config: RunConfig
    nodes: Sequence[RunNode]
    sets: NodeSets  # of the same nodes
    leader: int
    running: bool  # the driver
    restarts: int
    without_progress: int  # consecutive cycles without progress, including the current one
    leaving: frozenset[int] = frozenset()  # nodes that take part in no further cycle


def after_loss(context: FailureContext, lost: RunNode, phase: str | None) -> Decision:
    """Decide after the loss or failure of an active node; `phase` is None when the node itself is lost."""
    config = context.config
    if lost.node_index == context.leader and not context.running and phase is not None and _may_hand_over(config):
        shortage = shortage_in_round(context, EXTERNAL_LEADER, context.leader)
        return Decision(Action.YIELD) if shortage is None else Decision(Action.END, shortage)
    if lost.node_index == context.leader:
        restartable = context.running and config.on_node_loss == RESTART and phase == RAY_PHASE
        return after_restart_cause(context) if restartable else Decision(Action.END)
    if context.running and config.on_node_loss == RESTART:
        return after_restart_cause(context, lost.node_index)
    if context.running and config.on_node_loss == FAIL:
        return Decision(Action.END)
    replacement = context.sets.spares.nearest(lost.location, same_domain=config.segment > 1)
    if replacement is not None:
        return Decision(Action.REPLACE, replacement=replacement)
    if config.elastic and not context.running:
        return after_restart_cause(context, lost.node_index)
    wanted = config.spares or config.on_node_loss == REPLACE
    return Decision(Action.END, end_reasons.no_spare(config, lost) if wanted else "")


def after_leader_failure(context: FailureContext, phase: str | None, gathering: bool) -> Decision | None:
    """Decide, before the driver, after the failure of the leader's own node: YIELD with the next leader, or END.

    None while the leader waits for more nodes to arrive: so few could not elect another one.
    """
    decision = after_loss(context, context.nodes[context.leader], phase)
    if decision.action is not Action.YIELD:
        return decision
    pending = context.sets.pending
    if gathering and pending and context.config.failover and len(context.sets.available) <= pending:
        return None
    next_leader = successor(context)
    if next_leader is not None:
        return replace(decision, replacement=next_leader)
    return None if gathering else Decision(Action.END, end_reasons.NO_OTHER_LEADER)


def after_exclusion(context: FailureContext, excluded: RunNode) -> Decision:
    """Decide after a program has excluded this active node while the driver runs; `context.leaving` contains it."""
    if excluded.node_index != context.leader:
        return after_loss(context, excluded, None)
    restartable = context.config.on_node_loss == RESTART
    return after_restart_cause(context) if restartable else Decision(Action.END)


def after_leader_loss(context: FailureContext) -> Decision:
    """Decide, as the next leader, after the loss of the previous one. Its driver and Ray head are lost with it."""
    if context.config.on_node_loss == FAIL:
        return Decision(Action.END)
    return _restart_unless(context, shortage_in_round(context, EXTERNAL_LEADER))


def successor(context: FailureContext) -> int | None:
    """Return the first node that can lead the round instead of the leader; None if there is none yet."""
    possible, located = context.sets.possible, not context.sets.unknown_locations
    left_out = context.leaving | {context.leader}
    others = (node_index for node_index in sorted(context.sets.available) if node_index not in left_out)
    return next((other for other in others if possible.is_sufficient(other, located, left_out)), None)


def after_handover(context: FailureContext) -> Decision:
    """Decide, as the next leader, after the previous one has stepped down before its driver ran."""
    shortage = shortage_in_round(context, EXTERNAL_LEADER)
    return Decision(Action.RESTART) if shortage is None else Decision(Action.END, shortage)


def after_driver_failure(context: FailureContext) -> Decision:
    """Decide after the driver exited with a code other than 0, or stalled."""
    return after_restart_cause(context) if context.config.restart_on_driver_failure else Decision(Action.END)


def after_stall(context: FailureContext, restart: bool | None) -> Decision:
    """Decide after the driver stalled; `restart`: what the job wants then, None if only what follows a failure."""
    if restart is None:
        return after_driver_failure(context)
    return after_restart_cause(context) if restart else Decision(Action.END)


def after_restart_cause(context: FailureContext, lost: int | None = None) -> Decision:
    """Restart if, in this order, restarts are left, enough nodes are left, and earlier cycles made progress."""
    return _restart_unless(context, shortage_in_next_cycle(context, lost))


def shortage_between_drivers(context: FailureContext, gathering: bool, lost: int) -> str | None:
    """Return why the cycle that gathers, or else the next one, cannot do without the lost node; None if it can."""
    return shortage_in_round(context, context.leader, lost) if gathering else shortage_in_next_cycle(context, lost)


def shortage_in_round(context: FailureContext, leader: int, lost: int | None = None) -> str | None:
    """Return why the gathering round cannot get enough nodes without the lost one; None if it can."""
    sets, without = context.sets, _left_out(context, lost)
    if sets.possible.is_sufficient(leader, not sets.unknown_locations, without):
        return None
    return _too_few(context, possible_pool(_without(context.nodes, without), context.config, leader))


def shortage_in_next_cycle(context: FailureContext, lost: int | None = None) -> str | None:
    """Return why the nodes that have joined, without those that leave, are too few for another cycle; None if not.

    If the leader's own node leaves, another node leads that cycle.
    """
    without = _left_out(context, lost)
    leader = EXTERNAL_LEADER if context.leader in context.leaving and _may_hand_over(context.config) else context.leader
    if context.sets.usable.is_sufficient(leader, without=without):
        return None
    return _too_few(context, usable_pool(_without(context.nodes, without), context.config, leader))


def _may_hand_over(config: RunConfig) -> bool:
    """Return whether another node may lead instead of one that has failed."""
    return config.has_surplus or config.failover


def _left_out(context: FailureContext, lost: int | None) -> frozenset[int]:
    return context.leaving if lost is None else context.leaving | {lost}


def _too_few(context: FailureContext, left: NodePool) -> str:
    return end_reasons.too_few(context.config, context.nodes, left)


def _without(nodes: Sequence[RunNode], left_out: frozenset[int]) -> Sequence[RunNode]:
    """Return the nodes with some of them excluded. A scan: only for the text at the end of the run."""
    return [node.with_role(Role.EXCLUDED, None) if node.node_index in left_out else node for node in nodes]


def _restart_unless(context: FailureContext, shortage: str | None) -> Decision:
    config = context.config
    if context.restarts >= config.max_restarts:
        spent = f"restart {context.restarts} was the last" if context.restarts else "no restart is allowed"
        return Decision(Action.END, f"{spent} (--max-restarts {config.max_restarts})")
    if shortage is not None:
        return Decision(Action.END, shortage)
    if config.no_progress_limit and context.without_progress >= config.no_progress_limit:
        reason = end_reasons.without_progress(config.no_progress_limit, context.without_progress)
        return Decision(Action.END, reason, NO_PROGRESS)
    return Decision(Action.RESTART)
