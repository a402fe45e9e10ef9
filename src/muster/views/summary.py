"""The summary of a run as lines of text, for `muster report --text` and for reports without scripts. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from muster.rundir.redaction import redacted
from muster.views import diagnosis
from muster.views.hosts import folded
from muster.views.json_values import as_text
from muster.views.phases import PHASE_STYLES
from muster.views.record import RunRecord
from muster.views.sanitize import log_line, printable
from muster.views.service_lines import endpoint_lines, instance_lines, load_line, ready_line
from muster.views.services import services
from muster.views.timeline import AttemptTimeline, Cycle, Timeline, build_timeline

SHORTEST_STEP_S = 0.05  # shorter steps of the critical path are summed up


def summary(run: RunRecord, tail_of: Callable[[int, int], list[str]] = lambda attempt, node_index: []) -> list[str]:
    """Return the lines, each printable and without secrets."""
    timeline = build_timeline(run)
    lines = [*_head(run, timeline)]
    for attempt in timeline.attempts:
        lines += _attempt(attempt, len(timeline.attempts) > 1, run.live)
    for service in services(run):
        lines += [f"service {ready_line(service)}", *(f"    {line}" for line in instance_lines(service))]
        lines += [f"    {load_line(service)}"] if service.loads else []
        lines += [f"    {line}" for line in endpoint_lines(service)]
    lines += _node_seconds(timeline)
    if torn := sum(attempt.torn for attempt in run.attempts):
        lines.append(f"{torn} line{'s' * (torn > 1)} of the events could not be read: was the disk full for a while?")
    for failure in diagnosis.failures(run, tail_of):
        cycle = f" in cycle {failure.cycle}" if failure.cycle else ""
        when = f" after {duration(failure.time - timeline.start)}" if failure.time is not None else ""
        lines.append(f"failure{cycle}{when}: {failure.host or 'the step'} in phase {failure.phase}: {failure.reason}")
        lines += [f"    | {log_line(line)}" for line in failure.tail]
    return [printable(redacted(line)) for line in lines]


def duration(seconds: float) -> str:
    """
    >>> duration(0.51), duration(75.04), duration(7384)
    ('0.5 s', '1 min 15.0 s', '2 h 03 min 04 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:04.1f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min {seconds % 60:02.0f} s"


def _head(run: RunRecord, timeline: Timeline) -> Iterator[str]:
    status = run.status
    job = f", Slurm job {status['job_id']}" if status.get("job_id") else ""
    yield f"{run.run_id}: {as_text(status.get('state'))} ({status.get('backend')}{job})"
    if status.get("end_reason"):
        yield f"  {status['end_reason']} (exit code {status.get('exit_code')})"
    asked = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.asked))
    yield f"  requested at {asked}, {'so far ' if run.live else ''}{duration(timeline.wall)}"


def _attempt(attempt: AttemptTimeline, one_of_several: bool, live: bool) -> Iterator[str]:
    if one_of_several:
        yield f"attempt {attempt.number}: {duration(attempt.end - attempt.start)}"
    for cycle in attempt.cycles:
        yield from _path(cycle, live and cycle is attempt.cycles[-1])
    for mark in attempt.marks:
        if mark.kind == "control":
            yield f"requested after {duration(mark.time - attempt.start)}: {mark.text}"
    if attempt.nodes:
        phases = [
            f"{len(nodes)} {PHASE_STYLES[phase].title}" for phase, nodes in diagnosis.last_phases(attempt).items()
        ]
        yield f"nodes: {', '.join(phases)}"
    if away := diagnosis.missing(attempt):
        yield f"not arrived: {folded(node.host for node in away)}"
    slow, usual = diagnosis.slowest(attempt, attempt.cycles[-1].number, 5)
    if len(slow) > 1:
        yield f"slowest nodes (the median took {usual:.1f} s):"
        for one in slow:
            more = f", services {one.services:.1f} s" if one.services else ""
            where = f"{one.host} (index {one.node_index})"
            yield f"    {where}: launching {one.launching:.1f} s, Ray {one.starting:.1f} s{more}"


def _path(cycle: Cycle, live: bool) -> Iterator[str]:
    total = sum(step.seconds for step in cycle.path)
    which = f"cycle {cycle.number}" if cycle.number else "the driver"
    if cycle.driver_start is not None:
        ran = (cycle.driver_end or cycle.end) - cycle.driver_start
        yield f"{duration(total)} to {which}, which ran {duration(ran)}"
    else:
        yield f"{duration(total)} without a driver{' so far' if live else ''}"
    shown = [step for step in cycle.path if step.seconds >= SHORTEST_STEP_S]
    for step in shown:
        yield f"    {step.seconds:7.1f} s  {PHASE_STYLES[step.phase].title:<13} {step.what}"
    if (rest := total - sum(step.seconds for step in shown)) > SHORTEST_STEP_S:
        yield f"    {rest:7.1f} s  in shorter steps"
    if cycle.reason:
        yield f"    ended: {cycle.reason}"


def _node_seconds(timeline: Timeline) -> Iterator[str]:
    sums = diagnosis.node_seconds(timeline)
    total = sum(sums.values())
    if total:
        parts = [
            f"{PHASE_STYLES[phase].title} {100 * part / total:.0f} %"
            for phase, part in sorted(sums.items(), key=lambda item: -item[1])
            if part >= 0.005 * total
        ]
        yield f"node-seconds: {total:.0f}, of which {', '.join(parts)}"
