"""The data that a page shows of a run, as one JSON value: the report embeds it, the web page fetches it. Pure.

Times are whole milliseconds since the run was requested. Texts are printable and contain no secrets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from muster.rundir import RunPaths
from muster.rundir.hosts import host_file_name
from muster.rundir.redaction import redact_words, scrubbed
from muster.views import diagnosis
from muster.views.hosts import folded
from muster.views.json_values import as_dict, as_dicts, as_int, as_text
from muster.views.phases import PHASE_STYLES, Phase
from muster.views.record import RunRecord
from muster.views.sanitize import log_line, plain
from muster.views.service_lines import endpoint_lines
from muster.views.services import ServiceView, services, total
from muster.views.timeline import AttemptTimeline, NodeTimeline, Timeline, build_timeline

INDEX = {phase: number for number, phase in enumerate(Phase)}
SHOWN_EVENTS = 40
SHOWN_EVENT_NAMES = (
    "note",
    "dashboard",
    "stalled",
    "suspended",
    "failure",
    "unended",
    "gcs_restart",
    "bad_node",
    "control",
    "hang",
    "driver_start",
    "driver_end",
    "end",
    "run",
    "service",
)


def page_model(
    run: RunRecord,
    tail_of: Callable[[int, int], list[str]] = lambda attempt, node_index: [],
    timeline: Timeline | None = None,
) -> dict[str, Any]:
    """Return the page's data of a run; `tail_of` as in `diagnosis.failures`; `timeline` if it is built already."""
    timeline = timeline or build_timeline(run)
    status, job = run.status, run.job
    model = {
        "run": run.run_id,
        "directory": run.root,
        "state": as_text(status.get("state")),
        "live": run.live,
        "reason": as_text(status.get("end_reason")),
        "exit_code": as_int(status.get("exit_code")),
        "backend": as_text(status.get("backend")) or (run.submission.backend or ""),
        "job_id": as_text(status.get("job_id")),
        "command": redact_words([word for word in job.get("command") or [] if isinstance(word, str)]),
        "waits": _waits(run, timeline),
        "silent": diagnosis.silence(run),
        "asked": run.asked,
        "now": _ms(timeline, run.now),
        "wall": _ms(timeline, timeline.end),
        "phases": [{"name": phase.value, **_style(phase)} for phase in Phase],
        "attempts": [_attempt(timeline, attempt) for attempt in timeline.attempts],
        "node_seconds": [[INDEX[phase], round(total, 1)] for phase, total in diagnosis.node_seconds(timeline).items()],
        "failures": [_failure(timeline, failure) for failure in diagnosis.failures(run, tail_of)],
        "resources": [vars(share) for share in diagnosis.resources(job)],
        "ray": as_dict(status.get("ray")) or None,
        "guests": as_dicts(status.get("guests")),
        "services": [_service(run, service) for service in services(run)],
        "happenings": _shown_events(timeline, run),
        "spec": _spec(job),
        "torn": sum(attempt.torn for attempt in run.attempts),
    }
    shown: dict[str, Any] = plain(scrubbed(model))
    return shown


def _ms(timeline: Timeline, when: float) -> int:
    return round((when - timeline.start) * 1000)


def _waits(run: RunRecord, timeline: Timeline) -> list[Any] | None:
    waits = diagnosis.waits_for(run, timeline)
    return None if waits is None else [waits[0], _ms(timeline, waits[1])]


def _style(phase: Phase) -> dict[str, str]:
    style = PHASE_STYLES[phase]
    return {"title": style.title, "meaning": style.meaning, "letter": style.letter, "glyph": style.glyph}


def _attempt(timeline: Timeline, attempt: AttemptTimeline) -> dict[str, Any]:
    slow_cycle = attempt.cycles[-1].number
    slow, usual = diagnosis.slowest(attempt, slow_cycle)
    return {
        "number": attempt.number,
        "start": _ms(timeline, attempt.start),
        "began": _ms(timeline, attempt.began),
        "end": _ms(timeline, attempt.end),
        "nodes": [_node(timeline, node) for node in attempt.nodes],
        "marks": [[_ms(timeline, mark.time), mark.kind, mark.node_index, mark.text] for mark in attempt.marks],
        "cycles": [
            {
                "number": cycle.number,
                "start": _ms(timeline, cycle.start),
                "end": _ms(timeline, cycle.end),
                "driver": [_ms(timeline, when) if when else None for when in (cycle.driver_start, cycle.driver_end)],
                "reason": cycle.reason,
                "path": [
                    [INDEX[step.phase], step.node_index, _ms(timeline, step.start), _ms(timeline, step.end), step.what]
                    for step in cycle.path
                ],
            }
            for cycle in attempt.cycles
        ],
        "missing": folded([node.host for node in diagnosis.missing(attempt)][: diagnosis.MAX_FOLDED_HOSTS]),
        "slow": {
            "cycle": slow_cycle,
            "usual": round(usual, 3),
            "nodes": [
                [one.node_index, one.host, *(round(part, 3) for part in (one.launching, one.starting, one.services))]
                for one in slow
            ],
        },
    }


def _node(timeline: Timeline, node: NodeTimeline) -> list[Any]:
    """Return the node with its spans as pairs of phase and start; the last span ends with the attempt."""
    spans = [number for span in node.spans for number in (INDEX[span.phase], _ms(timeline, span.start))]
    return [node.node_index, node.host, node.role, node.state, spans, INDEX[node.phase]]


def _service(run: RunRecord, service: ServiceView) -> dict[str, Any]:
    """Return the service with its instances and the paths of their logs."""
    attempt, cycle = RunPaths(run.root).attempt(run.attempts[-1].number), as_int(run.attempts[-1].status.get("cycle"))
    return {
        "name": service.name,
        "ready": service.ready,
        "wanted": service.wanted,
        "gate": service.gate,
        "restarts": service.restarts,
        "load": vars(total(load for _, load in service.loads)) if service.loads else None,
        "endpoint": [*endpoint_lines(service)],
        "instances": [
            {
                **vars(one),
                "load": vars(one.load) if one.load else None,
                "log": os.path.relpath(
                    attempt.service_log(service.name, host_file_name(one.host), cycle or 0), run.root
                ),
            }
            for one in service.instances
        ],
    }


def _failure(timeline: Timeline, failure: diagnosis.FailureSummary) -> dict[str, Any]:
    when = _ms(timeline, failure.time) if failure.time is not None else None
    return {**vars(failure), "time": when, "tail": [log_line(line) for line in failure.tail]}


def _shown_events(timeline: Timeline, run: RunRecord) -> list[list[Any]]:
    """Return the last events for the list, without changes of node states, which the timeline shows."""
    found: list[list[Any]] = []
    for event in run.attempts[-1].events if run.attempts else ():
        if event.name in SHOWN_EVENT_NAMES and (event.name, event.fields.get("state")) != ("service", "ready"):
            host = as_text(event.fields.get("host"))
            details = [as_text(event.fields.get(name)) for name in ("service", "state", "kind", "text", "reason")]
            text = " ".join(filter(None, [host, *details])) or event.name.replace("_", " ")
            found.append([_ms(timeline, event.time), event.name, text])
    return found[-SHOWN_EVENTS:]


def _spec(job: dict[str, Any]) -> dict[str, Any]:
    """Return the resolved job without empty fields and without secrets in its command."""
    shown = {name: value for name, value in job.items() if value not in (None, [], {}, "")}
    if isinstance(shown.get("command"), list):
        shown["command"] = redact_words([str(word) for word in shown["command"]])
    return shown
