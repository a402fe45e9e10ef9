"""Diagnose a timeline: slowest and missing nodes, failures, node-seconds by phase, the current wait. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from muster.runs.monitor import STATUS_STALE_S
from muster.views.hosts import folded
from muster.views.json_values import as_dict, as_dicts, as_int, as_text, as_time
from muster.views.phases import ALLOCATED, Phase
from muster.views.record import AttemptRecord, RunRecord
from muster.views.timeline import AttemptTimeline, NodeTimeline, Timeline

MAX_FOLDED_HOSTS = 2000  # folding more takes too long for a live view


@dataclass(frozen=True)
class SlowNode:
    """Seconds that one node took to start in a cycle, without waiting for others."""

    node_index: int
    host: str
    launching: float
    starting: float
    services: float

    @property
    def own(self) -> float:
        return self.launching + self.starting + self.services


@dataclass(frozen=True)
class FailureSummary:
    """The failure of a node or of the driver; `node_index` is None if only the launcher reported it."""

    attempt: int
    cycle: int
    time: float | None
    node_index: int | None
    host: str
    phase: str
    reason: str
    tail: tuple[str, ...]


@dataclass(frozen=True)
class NodeGroupRequest:
    """The resources requested for one group of nodes; None where the job requests nothing."""

    group: str
    nodes: int
    cpus: Any
    gpus: Any
    memory: Any
    partition: Any


def slowest(attempt: AttemptTimeline, cycle: int, most: int = 10) -> tuple[list[SlowNode], float]:
    """Return the nodes that took longest to start in this cycle, slowest first, and the median in seconds."""
    times = [slow for node in attempt.nodes if (slow := _start_up(node, cycle)) is not None]
    times.sort(key=lambda slow: (-slow.own, slow.node_index))
    return times[:most], median([slow.own for slow in times]) if times else 0.0


def _start_up(node: NodeTimeline, cycle: int) -> SlowNode | None:
    if not any(span.cycle == cycle and span.phase is not Phase.LOST for span in node.spans):
        return None
    seconds = [node.seconds(phase, cycle) for phase in (Phase.LAUNCHING, Phase.STARTING, Phase.SERVICES)]
    slow = SlowNode(node.node_index, node.host, *seconds)
    return slow if slow.own > 0 else None


def missing(attempt: AttemptTimeline) -> list[NodeTimeline]:
    """Return the nodes that have not arrived, or had not by the end."""
    return [node for node in attempt.nodes if node.phase is Phase.LAUNCHING]


def last_phases(attempt: AttemptTimeline) -> dict[Phase, list[NodeTimeline]]:
    """Return the nodes by current or last phase."""
    found: dict[Phase, list[NodeTimeline]] = {}
    for node in attempt.nodes:
        found.setdefault(node.phase, []).append(node)
    return {phase: found[phase] for phase in Phase if phase in found}


def node_seconds(timeline: Timeline) -> dict[Phase, float]:
    """Return the seconds of all nodes by phase since the job's start: the use of the allocation."""
    spans = [span for attempt in timeline.attempts for node in attempt.nodes for span in node.spans]
    sums = dict.fromkeys(ALLOCATED, 0.0)
    for span in spans:
        if span.phase in sums:
            sums[span.phase] += span.seconds
    return {phase: total for phase, total in sums.items() if total > 0}


def waits_for(run: RunRecord, timeline: Timeline) -> tuple[str, float] | None:
    """Return what a live run waits for, as text, and since when; None for an ended run."""
    attempt = timeline.attempts[-1]
    cycle = attempt.cycles[-1]
    if not run.live:
        return None
    state = as_text(run.status.get("state"))
    if cycle.driver_start is not None and cycle.driver_end is None and state == "running":
        return "the driver runs", cycle.driver_start
    if state == "finishing":
        return "stopping everything", cycle.driver_end or cycle.start
    if not cycle.path:
        return None
    step = cycle.path[-1]
    away = folded([node.host for node in missing(attempt)][:MAX_FOLDED_HOSTS]) if step.phase is Phase.LAUNCHING else ""
    return step.what + (f": {away}" if away else ""), step.start


def silence(run: RunRecord) -> float | None:
    """Return the seconds since the last status update of a live run if a working leader would have updated since."""
    updated = as_time(run.attempts[-1].status.get("updated")) if run.attempts else None
    quiet = run.now - updated if updated is not None and run.live else 0.0
    return quiet if quiet > STATUS_STALE_S else None


def failures(
    run: RunRecord, tail_of: Callable[[int, int], list[str]] = lambda attempt, node_index: []
) -> list[FailureSummary]:
    """Return all failures in order, recovered or not; `tail_of` reads a node's log tail where the event has none."""
    found: list[FailureSummary] = []
    for attempt in run.attempts:
        reported = [
            _failure(attempt, event.cycle, event.time, event.fields)
            for event in attempt.events
            if event.name == "failure"
        ]
        last = as_dict(attempt.status.get("error")) or (
            as_dict(run.status.get("error")) if attempt is run.attempts[-1] else {}
        )
        final = _failure(attempt, as_int(attempt.status.get("cycle")) or 0, None, last) if last else None
        if final is not None and not any(
            (f.node_index, f.reason) == (final.node_index, final.reason) for f in reported
        ):
            reported.append(final)
        found += reported
    return [
        failure
        if failure.tail or failure.node_index is None
        else replace(failure, tail=tuple(tail_of(failure.attempt, failure.node_index)))
        for failure in found
    ]


def _failure(attempt: AttemptRecord, cycle: int, time: float | None, fields: dict[str, Any]) -> FailureSummary:
    tail = fields.get("log_tail")
    lines = tuple(line for line in tail if isinstance(line, str)) if isinstance(tail, list) else ()
    return FailureSummary(
        attempt.number,
        cycle,
        as_time(time),
        as_int(fields.get("rank")),
        as_text(fields.get("host")),
        as_text(fields.get("phase")),
        as_text(fields.get("reason")),
        lines,
    )


def resources(job: dict[str, Any]) -> list[NodeGroupRequest]:
    """Return the requested resources: one row per group of nodes, and one for the spares."""
    rows = []
    for group in as_dicts(job.get("groups")) or [{**job, "name": ""}]:
        gpus = group.get("gpus_per_node") if group.get("gpus_per_node") is not None else group.get("gres")
        memory, partition = group.get("mem") or job.get("mem"), group.get("partition") or job.get("partition")
        nodes = as_int(group.get("nodes")) or 0
        rows.append(
            NodeGroupRequest(as_text(group.get("name")), nodes, group.get("cpus_per_node"), gpus, memory, partition)
        )
    if (spares := as_int(job.get("spares")) or 0) and rows:
        rows.append(replace(rows[0], group="spares", nodes=spares))
    return rows
