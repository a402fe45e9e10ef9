"""The end of a run in words: which node, in which phase, why, and what kept the run from going on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster.rendezvous.messages import Outcome
from muster.rendezvous.plan import INFRASTRUCTURE_FAILED, Plan
from muster.rendezvous.roles import Node


def because(ended: Outcome, why: str) -> Outcome:
    """With what kept the run from going on."""
    return replace(ended, end_reason=f"{ended.end_reason}; {why}") if why else ended


def listed(names: Sequence[str], most: int = 8) -> str:
    """'n1, n2 and 12 more': enough to act on, short enough to read."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def failure(node: Node, phase: str, reason: str) -> Outcome:
    """A failure of Muster's or the cluster's own, by the node's name."""
    return Outcome("failed", INFRASTRUCTURE_FAILED, reason, node.host, node.rank, phase)


def nobody_came(plan: Plan, nodes: Sequence[Node], cycle: int) -> Outcome:
    """The round's deadline is over, and too few nodes are there."""
    missing, here = [node for node in nodes if node.may_come], sum(node.here for node in nodes)
    what = "did not arrive" if cycle == 0 else "did not get clean for the next cycle"
    reason = f"{listed([node.host for node in missing])} {what} within {plan.gather_timeout:g} s"
    why = f"{here} of the {plan.wanted} nodes that the job needs are there" if plan.spares or cycle else ""
    return because(failure(missing[0], "gathering", reason), why)


def too_late(plan: Plan, late: Sequence[Node]) -> str:
    return f"Ray was not up on {listed([node.host for node in late])} within {plan.start_timeout:g} s"


def too_few(plan: Plan, count: int) -> str:
    return f"{count} usable {'node is' if count == 1 else 'nodes are'} left, and the job needs {plan.wanted}"
