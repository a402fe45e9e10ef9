"""What a timeline shows of itself: who was slowest, who is missing, what failed, where the node-seconds went. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from muster.runs.monitor import STATUS_STALE_S
from muster.views.hosts import folded
from muster.views.phases import ALLOCATED, Phase
from muster.views.record import AttemptRecord, RunRecord, moment, record, records, whole, words
from muster.views.timeline import AttemptTimeline, NodeLine, Timeline

MOST_NAMED = 2000  # hosts that are folded into one text


@dataclass(frozen=True)
class Slow:
    """What one node took to come up in a cycle, by its own doing: waiting for others does not count."""

    rank: int
    host: str
    launching: float
    starting: float
    services: float

    @property
    def own(self) -> float:
        return self.launching + self.starting + self.services


@dataclass(frozen=True)
class FailureSummary:
    """A node, or the driver, that failed; `rank` is None where only the launcher knows."""

    attempt: int
    cycle: int
    time: float | None
    rank: int | None
    host: str
    phase: str
    reason: str
    tail: tuple[str, ...]


@dataclass(frozen=True)
class PhaseShare:
    """One kind of nodes of the job, as asked for; None is what nobody asked for."""

    group: str
    nodes: int
    cpus: Any
    gpus: Any
    memory: Any
    partition: Any


def slowest(attempt: AttemptTimeline, cycle: int, most: int = 10) -> tuple[list[Slow], float]:
    """The nodes that took longest to come up in this cycle, the slowest first; and what the median took."""
    times = [own for node in attempt.nodes if (own := _own(node, cycle)) is not None]
    times.sort(key=lambda slow: (-slow.own, slow.rank))
    return times[:most], median([slow.own for slow in times]) if times else 0.0


def _own(node: NodeLine, cycle: int) -> Slow | None:
    if not any(span.cycle == cycle and span.phase is not Phase.LOST for span in node.spans):
        return None
    own = [node.seconds(phase, cycle) for phase in (Phase.LAUNCHING, Phase.STARTING, Phase.SERVICES)]
    slow = Slow(node.rank, node.host, *own)
    return slow if slow.own > 0 else None


def missing(attempt: AttemptTimeline) -> list[NodeLine]:
    """Nodes that have not arrived, or had not by the end."""
    return [node for node in attempt.nodes if node.phase is Phase.LAUNCHING]


def last_phases(attempt: AttemptTimeline) -> dict[Phase, list[NodeLine]]:
    """The nodes by the phase they are in, or ended in."""
    found: dict[Phase, list[NodeLine]] = {}
    for node in attempt.nodes:
        found.setdefault(node.phase, []).append(node)
    return {phase: found[phase] for phase in Phase if phase in found}


def node_seconds(seen: Timeline) -> dict[Phase, float]:
    """What the allocation was used for: the seconds of all nodes by phase, from the job's start on."""
    spans = [span for attempt in seen.attempts for node in attempt.nodes for span in node.spans]
    sums = dict.fromkeys(ALLOCATED, 0.0)
    for span in spans:
        if span.phase in sums:
            sums[span.phase] += span.seconds
    return {phase: total for phase, total in sums.items() if total > 0}


def waits_for(run: RunRecord, seen: Timeline) -> tuple[str, float] | None:
    """What a live run waits for, in words, and since when; None when it is over."""
    attempt = seen.attempts[-1]
    cycle = attempt.cycles[-1]
    if not run.live:
        return None
    state = words(run.status.get("state"))
    if cycle.driver_start is not None and cycle.driver_end is None and state == "running":
        return "the driver runs", cycle.driver_start
    if state == "finishing":
        return "everything is being ended", cycle.driver_end or cycle.start
    if not cycle.path:
        return None
    step = cycle.path[-1]
    away = folded([node.host for node in missing(attempt)][:MOST_NAMED]) if step.phase is Phase.LAUNCHING else ""
    return step.what + (f": {away}" if away else ""), step.start


def silence(run: RunRecord) -> float | None:
    """For how long a run that seems to be live has said nothing, where that is longer than a live lead ever is."""
    updated = moment(run.attempts[-1].status.get("updated")) if run.attempts else None
    quiet = run.now - updated if updated is not None and run.live else 0.0
    return quiet if quiet > STATUS_STALE_S else None


def failures(
    run: RunRecord, tail_of: Callable[[int, int], list[str]] = lambda attempt, rank: []
) -> list[FailureSummary]:
    """Everything that failed, mended or not, in order; `tail_of` has the end of a node's log, if none was told."""
    found: list[FailureSummary] = []
    for attempt in run.attempts:
        told = [
            _failure(attempt, event.cycle, event.time, event.fields)
            for event in attempt.events
            if event.name == "failure"
        ]
        last = record(attempt.status.get("error")) or (
            record(run.status.get("error")) if attempt is run.attempts[-1] else {}
        )
        final = _failure(attempt, whole(attempt.status.get("cycle")) or 0, None, last) if last else None
        if final is not None and not any((f.rank, f.reason) == (final.rank, final.reason) for f in told):
            told.append(final)
        found += told
    return [
        failure
        if failure.tail or failure.rank is None
        else replace(failure, tail=tuple(tail_of(failure.attempt, failure.rank)))
        for failure in found
    ]


def _failure(attempt: AttemptRecord, cycle: int, time: float | None, fields: dict[str, Any]) -> FailureSummary:
    tail = fields.get("log_tail")
    lines = tuple(line for line in tail if isinstance(line, str)) if isinstance(tail, list) else ()
    return FailureSummary(
        attempt.number,
        cycle,
        moment(time),
        whole(fields.get("rank")),
        words(fields.get("host")),
        words(fields.get("phase")),
        words(fields.get("reason")),
        lines,
    )


def resources(job: dict[str, Any]) -> list[PhaseShare]:
    """What the job asked for: a row for each group of nodes, and the spares."""
    rows = []
    for group in records(job.get("groups")) or [{**job, "name": ""}]:
        gpus = group.get("gpus_per_node") if group.get("gpus_per_node") is not None else group.get("gres")
        memory, partition = group.get("mem") or job.get("mem"), group.get("partition") or job.get("partition")
        nodes = whole(group.get("nodes")) or 0
        rows.append(PhaseShare(words(group.get("name")), nodes, group.get("cpus_per_node"), gpus, memory, partition))
    if (spares := whole(job.get("spares")) or 0) and rows:
        rows.append(replace(rows[0], group="spares", nodes=spares))
    return rows
