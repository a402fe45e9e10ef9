"""What follows a loss, or a driver that failed. Pure.

who                        when                   what follows
an active node             before the driver      a spare takes its rank; none left: the end
an active node             running, fail          the end
an active node             running, replace       a spare takes its rank; none left: the end
an active node             running, restart       a new cycle, within the budget and with enough nodes; else the end
the lead's Ray             running, restart       the same; under any other policy the end
the lead's agent           any                    with a majority of the others a new cycle, as above; else the end
the driver                 running                a new cycle where that is wanted, as above; else the end
(a spare, or anybody while nodes gather: the protocol's own rules, no choice is to be made)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from muster.rendezvous import words
from muster.rendezvous.plan import FAIL, REPLACE, RESTART, Plan
from muster.rendezvous.roles import Node, left, next_spare, usable

RAY_PHASE = "ray"  # what failed was Ray, not the agent


class Step(str, Enum):
    """What is to be done."""

    END = "end"
    REPLACE = "replace"
    RESTART = "restart"


@dataclass(frozen=True)
class Verdict:
    """The step; where it is the end though another was wanted, why."""

    step: Step
    why: str = ""


def after_loss(
    plan: Plan, nodes: Sequence[Node], restarts: int, lead: bool, running: bool, phase: str | None
) -> Verdict:
    """For an active node, already excluded unless it is the lead; `phase` is None when the node itself is gone."""
    if lead:
        may = running and plan.on_node_loss == RESTART and phase == RAY_PHASE
        return after_restart_cause(plan, nodes, restarts) if may else Verdict(Step.END)
    if running and plan.on_node_loss == RESTART:
        return after_restart_cause(plan, nodes, restarts)
    if running and plan.on_node_loss == FAIL:
        return Verdict(Step.END)
    if next_spare(nodes) is not None:
        return Verdict(Step.REPLACE)
    return Verdict(Step.END, "no spare is left" if plan.spares or plan.on_node_loss == REPLACE else "")


def after_lead_loss(plan: Plan, nodes: Sequence[Node], restarts: int) -> Verdict:
    """For the lead that follows a lost one. With that one the driver and Ray's head went: only a new cycle helps."""
    if plan.on_node_loss == FAIL:
        return Verdict(Step.END)
    return _restart_with(plan, left(nodes), restarts)


def after_driver_failure(plan: Plan, nodes: Sequence[Node], restarts: int) -> Verdict:
    """The driver failed by itself: it exited with another code than 0, or stalled."""
    return after_restart_cause(plan, nodes, restarts) if plan.restart_on_driver_failure else Verdict(Step.END)


def after_restart_cause(plan: Plan, nodes: Sequence[Node], restarts: int) -> Verdict:
    """A new cycle, if there are restarts and nodes left for it."""
    return _restart_with(plan, usable(nodes), restarts)


def _restart_with(plan: Plan, count: int, restarts: int) -> Verdict:
    if restarts >= plan.max_restarts:
        spent = f"restart {restarts} was the last" if restarts else "no restart is allowed"
        return Verdict(Step.END, f"{spent} (--max-restarts {plan.max_restarts})")
    if count < plan.wanted:
        return Verdict(Step.END, words.too_few(plan, count))
    return Verdict(Step.RESTART)
