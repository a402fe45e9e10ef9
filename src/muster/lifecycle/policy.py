"""The decision after a node is lost or the driver fails. Pure functions.

lost or failed             when                   decision
an active node             before the driver      promote a spare; without one, end the run
an active node             running, fail          end the run
an active node             running, replace       promote a spare; without one, end the run
an active node             running, restart       a new cycle, if the restart budget and the nodes suffice and there was
                                                  progress; else end the run
Ray on the leader's node   running, restart       the same; under any other policy end the run
Ray on the leader's node   before the driver      yield to another node, which begins a new cycle, as above
the leader's agent         any                    with a majority of the others a new cycle, as above; else end the run
the driver                 running                a new cycle where configured, as above; else end the run

Losses of spares, and losses while nodes gather, need no decision: the state machine handles them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from muster.exit_codes import NO_PROGRESS
from muster.lifecycle import end_reasons
from muster.lifecycle.config import EXTERNAL_LEADER, FAIL, REPLACE, RESTART, RunConfig
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
    replacement: int | None = None  # REPLACE: node index of the spare to promote


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


def after_loss(context: FailureContext, lost: RunNode, phase: str | None) -> Decision:
    """Decide after the loss or failure of an active node; `phase` is None when the node itself is lost."""
    config = context.config
    if lost.node_index == context.leader and not context.running and phase is not None and config.failover:
        decision = after_leader_loss(context)
        return Decision(Action.YIELD) if decision.action is Action.RESTART else decision
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
    wanted = config.spares or config.on_node_loss == REPLACE
    return Decision(Action.END, end_reasons.no_spare(config, lost) if wanted else "")


def after_leader_loss(context: FailureContext) -> Decision:
    """Decide, as the next leader, after the loss of the previous one. Its driver and Ray head are lost with it."""
    if context.config.on_node_loss == FAIL:
        return Decision(Action.END)
    return _restart_unless(context, shortage_in_round(context, EXTERNAL_LEADER))


def after_driver_failure(context: FailureContext) -> Decision:
    """Decide after the driver exited with a code other than 0, or stalled."""
    return after_restart_cause(context) if context.config.restart_on_driver_failure else Decision(Action.END)


def after_restart_cause(context: FailureContext, lost: int | None = None) -> Decision:
    """Restart if, in this order, restarts are left, enough nodes are left, and earlier cycles made progress."""
    return _restart_unless(context, shortage_in_next_cycle(context, lost))


def shortage_in_round(context: FailureContext, leader: int, lost: int | None = None) -> str | None:
    """Return why the gathering round cannot get enough nodes without the lost one; None if it can."""
    sets = context.sets
    if sets.possible.is_sufficient(leader, not sets.unknown_locations, lost):
        return None
    return _too_few(context, possible_pool(_without(context.nodes, lost), context.config, leader))


def shortage_in_next_cycle(context: FailureContext, lost: int | None = None) -> str | None:
    """Return why the nodes that have joined, without the lost one, are too few for another cycle; None if not."""
    if context.sets.usable.is_sufficient(context.leader, without=lost):
        return None
    return _too_few(context, usable_pool(_without(context.nodes, lost), context.config, context.leader))


def _too_few(context: FailureContext, left: NodePool) -> str:
    return end_reasons.too_few(context.config, context.nodes, left)


def _without(nodes: Sequence[RunNode], lost: int | None) -> Sequence[RunNode]:
    """Return the nodes with the lost one excluded. A scan: only for the text at the end of the run."""
    return [node.with_role(Role.EXCLUDED, None) if node.node_index == lost else node for node in nodes]


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
