"""What follows a loss, or a driver that failed. Pure.

who                        when                   what follows
an active node             before the driver      a spare takes its rank; none left: the end
an active node             running, fail          the end
an active node             running, replace       a spare takes its rank; none left: the end
an active node             running, restart       a new cycle: budget and nodes are left, and there was progress;
                                                  else the end
the leader's Ray             running, restart       the same; under any other policy the end
the leader's Ray             before the driver      it yields to another node, which begins a new cycle, as above
the leader's agent           any                    with a majority of the others a new cycle, as above; else the end
the driver                 running                a new cycle where that is wanted, as above; else the end
(a spare, or anybody while nodes gather: the protocol's own rules, no choice is to be made)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from muster.exit_codes import NO_PROGRESS
from muster.lifecycle import end_reasons
from muster.lifecycle.config import FAIL, OUTSIDE, REPLACE, RESTART, RunConfig
from muster.lifecycle.roles import RunNode, Supply, pick_replacement, possible, usable

RAY_PHASE = "ray"  # what failed was Ray, not the agent


class Action(str, Enum):
    """What is to be done."""

    END = "end"
    REPLACE = "replace"
    RESTART = "restart"
    YIELD = "yield"


@dataclass(frozen=True)
class Decision:
    """The step; where it is the end though another was wanted, why, and with which exit code if not the cause's own."""

    step: Action
    why: str = ""
    code: int | None = None


@dataclass(frozen=True)
class FailureContext:
    """What a verdict depends on, but for its cause."""

    plan: RunConfig
    nodes: Sequence[RunNode]  # one that is lost is excluded already, unless it is the leader
    leader: int
    running: bool  # the driver
    restarts: int
    without_progress: int  # cycles in a row without progress, the present one included


def after_loss(now: FailureContext, lost: RunNode, phase: str | None) -> Decision:
    """For an active node; `phase` is None when the node itself is gone."""
    plan = now.plan
    if lost.rank == now.leader and not now.running and phase is not None and plan.succession:
        verdict = after_leader_loss(now)
        return Decision(Action.YIELD) if verdict.step is Action.RESTART else verdict
    if lost.rank == now.leader:
        may = now.running and plan.on_node_loss == RESTART and phase == RAY_PHASE
        return after_restart_cause(now) if may else Decision(Action.END)
    if now.running and plan.on_node_loss == RESTART:
        return after_restart_cause(now)
    if now.running and plan.on_node_loss == FAIL:
        return Decision(Action.END)
    if pick_replacement(now.nodes, lost, plan.segment) is not None:
        return Decision(Action.REPLACE)
    return Decision(Action.END, end_reasons.no_spare(plan, lost) if plan.spares or plan.on_node_loss == REPLACE else "")


def after_leader_loss(now: FailureContext) -> Decision:
    """For whoever leads next. With a lost leader the driver and Ray's head went: only a new cycle helps."""
    if now.plan.on_node_loss == FAIL:
        return Decision(Action.END)
    return _restart_with(now, possible(now.nodes, now.plan, OUTSIDE))


def after_driver_failure(now: FailureContext) -> Decision:
    """The driver failed by itself: it exited with another code than 0, or stalled."""
    return after_restart_cause(now) if now.plan.restart_on_driver_failure else Decision(Action.END)


def after_restart_cause(now: FailureContext) -> Decision:
    """A new cycle, if there are restarts and nodes left for it, and those before were of any use. In that order."""
    return _restart_with(now, usable(now.nodes, now.plan, now.leader))


def _restart_with(now: FailureContext, left: Supply) -> Decision:
    plan = now.plan
    if now.restarts >= plan.max_restarts:
        spent = f"restart {now.restarts} was the last" if now.restarts else "no restart is allowed"
        return Decision(Action.END, f"{spent} (--max-restarts {plan.max_restarts})")
    if not left.enough:
        return Decision(Action.END, end_reasons.too_few(plan, now.nodes, left))
    if plan.no_progress_limit and now.without_progress >= plan.no_progress_limit:
        return Decision(
            Action.END, end_reasons.without_progress(plan.no_progress_limit, now.without_progress), NO_PROGRESS
        )
    return Decision(Action.RESTART)
