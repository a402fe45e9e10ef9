"""The end of a run in words: which node, in which phase, why, and what kept the run from going on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import RunConfig
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.roles import RunNode, Supply
from muster.lifecycle.services import PlannedInstance


def because(ended: RunOutcome, why: str) -> RunOutcome:
    """With what kept the run from going on."""
    return replace(ended, end_reason=f"{ended.end_reason}; {why}") if why else ended


def listed(names: Sequence[str], most: int = 8) -> str:
    """'n1, n2 and 12 more': enough to act on, short enough to read."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def failure(node: RunNode, phase: str, reason: str) -> RunOutcome:
    """A failure of Muster's or the cluster's own, by the node's name."""
    return RunOutcome("failed", INFRASTRUCTURE_FAILED, reason, node.host, node.rank, phase)


def nobody_came(plan: RunConfig, nodes: Sequence[RunNode], cycle: int, here: Supply) -> RunOutcome:
    """The round's deadline is over, and too few nodes are there."""
    missing = [node for node in nodes if node.may_come]
    what = "did not arrive" if cycle == 0 else "did not get clean for the next cycle"
    reason = f"{listed([node.host for node in missing])} {what} within {plan.gather_timeout:g} s"
    why = _seated(plan, nodes, here) if not plan.foreknown or cycle else ""
    return because(failure(missing[0], "gathering", reason), why)


def _seated(plan: RunConfig, nodes: Sequence[RunNode], here: Supply) -> str:
    if plan.segment > 1:
        return _segments(plan, nodes, here, "there")
    return f"{len(here.seats)} of the {plan.wanted} nodes that the job needs are there"


def too_late(plan: RunConfig, late: Sequence[RunNode]) -> str:
    return f"Ray was not up on {listed([node.host for node in late])} within {plan.start_timeout:g} s"


def too_few(plan: RunConfig, nodes: Sequence[RunNode], left: Supply) -> str:
    """What there is for a cycle, and what it would take; with the nodes that are not counted."""
    if plan.segment > 1:
        short = _segments(plan, nodes, left, "left")
    elif left.has_leader:
        count = len(left.seats)
        short = f"{count} usable {'node is' if count == 1 else 'nodes are'} left, and the job needs {plan.wanted}"
    else:
        short = f"{nodes[left.leader].host}, which leads the run, cannot be used"
    sick = [f"{node.host} is unhealthy: {node.unhealthy_reason}" for node in nodes if node.unhealthy_reason is not None]
    return "; ".join([short, *([listed(sick)] if sick else [])])


def _segments(plan: RunConfig, nodes: Sequence[RunNode], left: Supply, where: str) -> str:
    size, count, needed = plan.segment, len(left.seats) // plan.segment, plan.wanted // plan.segment
    if not left.has_leader:
        domain = nodes[left.leader].place.domain
        home = f"in its domain {domain}" if domain else "since its domain is not known (MUSTER_DOMAIN names it)"
        return f"{nodes[left.leader].host}, which leads the run, is in no whole segment of {size} nodes {home}"
    what = "whole segment" if count == 1 else "whole segments"
    return f"{count} {what} of {size} nodes {'is' if count == 1 else 'are'} {where}, and the job needs {needed}"


def no_spare(plan: RunConfig, lost: RunNode) -> str:
    """For a rank that somebody has to take: with segments a node of another domain cannot."""
    return f"no spare is left in its domain {lost.place.domain}" if plan.segment > 1 else "no spare is left"


def short_from_the_start(plan: RunConfig, nodes: Sequence[RunNode], here: Supply) -> RunOutcome:
    """Everybody who can come is there, and it is not enough."""
    return RunOutcome("failed", INFRASTRUCTURE_FAILED, too_few(plan, nodes, here), phase="gathering")


def without_progress(limit: int, cycles: int) -> str:
    what = "1 cycle" if cycles == 1 else f"{cycles} cycles in a row"
    return f"{what} without progress (--no-progress-limit {limit})"


def service_failed(node: RunNode, instance: PlannedInstance) -> str:
    return f"service {instance.service} on {node.host} {instance.words}"


def service_late(node: RunNode, instance: PlannedInstance, deadline: float) -> str:
    """With what its probe saw last, which is what is to be mended."""
    why = f": {instance.words}" if instance.words else ""
    return f"service {instance.service} was not ready on {node.host} within {deadline:g} s (its deadline){why}"
