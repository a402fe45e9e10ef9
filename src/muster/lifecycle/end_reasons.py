"""Texts for the end of a run: the node, the phase, the reason, and why the run could not continue. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import RunConfig
from muster.lifecycle.events import RunOutcome
from muster.lifecycle.roles import NodePool, RunNode
from muster.lifecycle.services import PlannedInstance
from muster.lifecycle.states import NodeState

LESS_THAN_HALF = "fewer than half of the nodes have joined, and the others could elect another leader"
NO_OTHER_LEADER = "too few other nodes joined to elect another leader"


def because(ended: RunOutcome, why: str) -> RunOutcome:
    """Return the outcome with the reason why the run could not continue."""
    return replace(ended, end_reason=f"{ended.end_reason}; {why}") if why else ended


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return a short list such as 'n1, n2 and 12 more'."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def failure(node: RunNode, phase: str, reason: str) -> RunOutcome:
    """Return the outcome for a failure of Muster or the cluster on this node."""
    return RunOutcome("failed", INFRASTRUCTURE_FAILED, reason, node.host, node.node_index, phase)


def loss(node: RunNode, phase: str, reason: str) -> RunOutcome:
    """Return the outcome for the loss of this node."""
    return replace(failure(node, phase, reason), lost=True)


def stalled(reason: str) -> RunOutcome:
    """Return the outcome for a driver that stalled."""
    return RunOutcome("failed", INFRASTRUCTURE_FAILED, reason, phase="stalled")


def restart_failed(reason: str) -> RunOutcome:
    """Return the outcome of a run whose next cycle never began; `reason`: why it was to begin."""
    return RunOutcome("failed", INFRASTRUCTURE_FAILED, reason, phase="restarting")


def gather_timed_out(config: RunConfig, nodes: Sequence[RunNode], cycle: int, available: NodePool) -> RunOutcome:
    """Return the outcome of a round whose deadline passed with too few nodes."""
    missing = [node for node in nodes if node.pending]
    what = "did not arrive" if cycle == 0 else "did not finish cleanup for the next cycle"
    reason = f"{listed([node.host for node in missing])} {what} within {config.gather_timeout:g} s"
    why = _available_count(config, nodes, available) if not config.fixed_ranks or cycle else ""
    why = LESS_THAN_HALF if available.sufficient else why
    return because(failure(missing[0], "gathering", reason), why)


def _available_count(config: RunConfig, nodes: Sequence[RunNode], available: NodePool) -> str:
    if config.segment > 1:
        return _segments(config, nodes, available, "available")
    return f"{len(available.node_indexes)} of the {config.needed_nodes} nodes that the job needs are available"


def too_late(config: RunConfig, late: Sequence[RunNode]) -> str:
    return f"Ray was not up on {listed([node.host for node in late])} within {config.start_timeout:g} s"


def too_few(config: RunConfig, nodes: Sequence[RunNode], left: NodePool) -> str:
    """Describe the nodes left for a cycle, the number needed, and the unhealthy nodes."""
    if config.segment > 1:
        short = _segments(config, nodes, left, "left")
    elif left.has_leader:
        count = len(left.node_indexes)
        short = (
            f"{count} usable {'node is' if count == 1 else 'nodes are'} left, and the job needs {config.needed_nodes}"
        )
    else:
        short = f"{nodes[left.leader].host}, which leads the run, cannot be used"
    unhealthy = [
        f"{node.host} is unhealthy: {node.unhealthy_reason}" for node in nodes if node.unhealthy_reason is not None
    ]
    return "; ".join([short, *([listed(unhealthy)] if unhealthy else [])])


def _segments(config: RunConfig, nodes: Sequence[RunNode], left: NodePool, where: str) -> str:
    size, count, needed = (
        config.segment,
        len(left.node_indexes) // config.segment,
        config.active_nodes // config.segment,
    )
    if not left.has_leader:
        domain = nodes[left.leader].location.domain
        home = f"in its domain {domain}" if domain else "since its domain is not known (MUSTER_DOMAIN names it)"
        return f"{nodes[left.leader].host}, which leads the run, is in no whole segment of {size} nodes {home}"
    what = "whole segment" if count == 1 else "whole segments"
    return f"{count} {what} of {size} nodes {'is' if count == 1 else 'are'} {where}, and the job needs {needed}"


def no_spare(config: RunConfig, lost: RunNode) -> str:
    """Describe the lack of a spare; with segments only spares of the lost node's domain count."""
    return f"no spare is left in its domain {lost.location.domain}" if config.segment > 1 else "no spare is left"


def too_few_arrived(config: RunConfig, nodes: Sequence[RunNode], available: NodePool) -> RunOutcome:
    """Return the outcome of a round in which no further node can arrive and the job needs more."""
    return RunOutcome("failed", INFRASTRUCTURE_FAILED, too_few(config, nodes, available), phase="gathering")


def without_progress(limit: int, cycles: int) -> str:
    what = "1 cycle" if cycles == 1 else f"{cycles} cycles in a row"
    return f"{what} without progress (--no-progress-limit {limit})"


def service_failed(node: RunNode, instance: PlannedInstance) -> str:
    return f"service {instance.service} on {node.host} {instance.detail}"


def service_late(node: RunNode, instance: PlannedInstance, deadline: float) -> str:
    """Describe a missed deadline, with the last result of the probe."""
    why = f": {instance.detail}" if instance.detail else ""
    return f"service {instance.service} was not ready on {node.host} within {deadline:g} s (its deadline){why}"


def unclean(nodes: Iterable[RunNode], driver_running: bool) -> str:
    """Return what had not confirmed its end when the run was concluded."""
    if driver_running:
        return "the driver did not end"
    return f"{listed([node.host for node in nodes if node.state is NodeState.STOPPING])} did not confirm cleanup"
