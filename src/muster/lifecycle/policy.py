"""What follows a loss, or a driver that failed. Pure.

who                        when                   what follows
an active node             before the driver      a spare takes its rank; none left: the end
an active node             running, fail          the end
an active node             running, replace       a spare takes its rank; none left: the end
an active node             running, restart       a new cycle: budget and nodes are left, and there was progress;
                                                  else the end
the lead's Ray             running, restart       the same; under any other policy the end
the lead's Ray             before the driver      it yields to another node, which begins a new cycle, as above
the lead's agent           any                    with a majority of the others a new cycle, as above; else the end
the driver                 running                a new cycle where that is wanted, as above; else the end
(a spare, or anybody while nodes gather: the protocol's own rules, no choice is to be made)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from muster.lifecycle import end_reasons
from muster.lifecycle.config import FAIL, NO_PROGRESS, OUTSIDE, REPLACE, RESTART, Plan
from muster.lifecycle.roles import Node, Supply, possible, stand_in, usable

RAY_PHASE = "ray"  # what failed was Ray, not the agent


class Step(str, Enum):
    """What is to be done."""

    END = "end"
    REPLACE = "replace"
    RESTART = "restart"
    YIELD = "yield"


@dataclass(frozen=True)
class Verdict:
    """The step; where it is the end though another was wanted, why, and with which exit code if not the cause's own."""

    step: Step
    why: str = ""
    code: int | None = None


@dataclass(frozen=True)
class Situation:
    """What a verdict depends on, but for its cause."""

    plan: Plan
    nodes: Sequence[Node]  # one that is lost is excluded already, unless it is the lead
    lead: int
    running: bool  # the driver
    restarts: int
    fruitless: int  # cycles in a row without progress, the present one included


def after_loss(now: Situation, lost: Node, phase: str | None) -> Verdict:
    """For an active node; `phase` is None when the node itself is gone."""
    plan = now.plan
    if lost.rank == now.lead and not now.running and phase is not None and plan.succession:
        verdict = after_lead_loss(now)
        return Verdict(Step.YIELD) if verdict.step is Step.RESTART else verdict
    if lost.rank == now.lead:
        may = now.running and plan.on_node_loss == RESTART and phase == RAY_PHASE
        return after_restart_cause(now) if may else Verdict(Step.END)
    if now.running and plan.on_node_loss == RESTART:
        return after_restart_cause(now)
    if now.running and plan.on_node_loss == FAIL:
        return Verdict(Step.END)
    if stand_in(now.nodes, lost, plan.segment) is not None:
        return Verdict(Step.REPLACE)
    return Verdict(Step.END, end_reasons.no_spare(plan, lost) if plan.spares or plan.on_node_loss == REPLACE else "")


def after_lead_loss(now: Situation) -> Verdict:
    """For whoever leads next. With a lost lead the driver and Ray's head went: only a new cycle helps."""
    if now.plan.on_node_loss == FAIL:
        return Verdict(Step.END)
    return _restart_with(now, possible(now.nodes, now.plan, OUTSIDE))


def after_driver_failure(now: Situation) -> Verdict:
    """The driver failed by itself: it exited with another code than 0, or stalled."""
    return after_restart_cause(now) if now.plan.restart_on_driver_failure else Verdict(Step.END)


def after_restart_cause(now: Situation) -> Verdict:
    """A new cycle, if there are restarts and nodes left for it, and those before were of any use. In that order."""
    return _restart_with(now, usable(now.nodes, now.plan, now.lead))


def _restart_with(now: Situation, left: Supply) -> Verdict:
    plan = now.plan
    if now.restarts >= plan.max_restarts:
        spent = f"restart {now.restarts} was the last" if now.restarts else "no restart is allowed"
        return Verdict(Step.END, f"{spent} (--max-restarts {plan.max_restarts})")
    if not left.enough:
        return Verdict(Step.END, end_reasons.too_few(plan, now.nodes, left))
    if plan.no_progress_limit and now.fruitless >= plan.no_progress_limit:
        return Verdict(Step.END, end_reasons.fruitless(plan.no_progress_limit, now.fruitless), NO_PROGRESS)
    return Verdict(Step.RESTART)
