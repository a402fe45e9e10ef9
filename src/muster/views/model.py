"""Everything a page shows of a run, as one JSON value: the report has it inside, the web page fetches it. Pure.

Times are whole milliseconds since the run was asked for. Texts are printable, and hold no secrets.
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
from muster.views.phases import LOOKS, Phase
from muster.views.record import RunRecord, record, records, whole, words
from muster.views.sanitize import log_line, plain
from muster.views.services import ServiceView, services, total
from muster.views.timeline import AttemptTimeline, NodeLine, Timeline, timeline

INDEX = {phase: number for number, phase in enumerate(Phase)}
LAST_NOTES = 40
WORTH_SAYING = (
    "note",
    "dashboard",
    "stalled",
    "failure",
    "unended",
    "driver_start",
    "driver_end",
    "end",
    "run",
    "service",
)


def page_model(run: RunRecord, tail_of: Callable[[int, int], list[str]] = lambda attempt, rank: []) -> dict[str, Any]:
    """The model of one run at one moment; `tail_of` as in findings.failures."""
    seen = timeline(run)
    status, job = run.status, run.job
    model = {
        "run": run.run_id,
        "directory": run.root,
        "state": words(status.get("state")),
        "live": run.live,
        "reason": words(status.get("end_reason")),
        "exit_code": whole(status.get("exit_code")),
        "backend": words(status.get("backend")) or words(run.submission.get("backend")),
        "job_id": words(status.get("job_id")),
        "command": redact_words([word for word in job.get("command") or [] if isinstance(word, str)]),
        "waits": _waits(run, seen),
        "silent": diagnosis.silence(run),
        "asked": run.asked,
        "now": _ms(seen, run.now),
        "wall": _ms(seen, seen.end),
        "phases": [{"name": phase.value, **_look(phase)} for phase in Phase],
        "attempts": [_attempt(seen, attempt) for attempt in seen.attempts],
        "node_seconds": [[INDEX[phase], round(total, 1)] for phase, total in diagnosis.node_seconds(seen).items()],
        "failures": [_failure(seen, failure) for failure in diagnosis.failures(run, tail_of)],
        "resources": [vars(share) for share in diagnosis.resources(job)],
        "ray": record(status.get("ray")) or None,
        "guests": records(status.get("guests")),
        "services": [_service(run, service) for service in services(run)],
        "happenings": _happenings(seen, run),
        "spec": _spec(job),
        "torn": sum(attempt.torn for attempt in run.attempts),
    }
    shown: dict[str, Any] = plain(scrubbed(model))
    return shown


def _ms(seen: Timeline, when: float) -> int:
    return round((when - seen.start) * 1000)


def _waits(run: RunRecord, seen: Timeline) -> list[Any] | None:
    waits = diagnosis.waits_for(run, seen)
    return None if waits is None else [waits[0], _ms(seen, waits[1])]


def _look(phase: Phase) -> dict[str, str]:
    look = LOOKS[phase]
    return {"title": look.title, "meaning": look.meaning, "letter": look.letter, "glyph": look.glyph}


def _attempt(seen: Timeline, attempt: AttemptTimeline) -> dict[str, Any]:
    slow_cycle = attempt.cycles[-1].number
    slow, usual = diagnosis.slowest(attempt, slow_cycle)
    return {
        "number": attempt.number,
        "start": _ms(seen, attempt.start),
        "began": _ms(seen, attempt.began),
        "end": _ms(seen, attempt.end),
        "nodes": [_node(seen, node) for node in attempt.nodes],
        "marks": [[_ms(seen, mark.time), mark.kind, mark.rank, mark.text] for mark in attempt.marks],
        "cycles": [
            {
                "number": cycle.number,
                "start": _ms(seen, cycle.start),
                "end": _ms(seen, cycle.end),
                "driver": [_ms(seen, when) if when else None for when in (cycle.driver_start, cycle.driver_end)],
                "reason": cycle.reason,
                "path": [
                    [INDEX[step.phase], step.rank, _ms(seen, step.start), _ms(seen, step.end), step.what]
                    for step in cycle.path
                ],
            }
            for cycle in attempt.cycles
        ],
        "missing": folded([node.host for node in diagnosis.missing(attempt)][: diagnosis.MOST_NAMED]),
        "slow": {
            "cycle": slow_cycle,
            "usual": round(usual, 3),
            "nodes": [
                [one.rank, one.host, *(round(part, 3) for part in (one.launching, one.starting, one.services))]
                for one in slow
            ],
        },
    }


def _node(seen: Timeline, node: NodeLine) -> list[Any]:
    """Its spans as pairs of phase and start; the last of them ends with the attempt."""
    spans = [number for span in node.spans for number in (INDEX[span.phase], _ms(seen, span.start))]
    return [node.rank, node.host, node.role, node.state, spans, INDEX[node.phase]]


def _service(run: RunRecord, service: ServiceView) -> dict[str, Any]:
    """Its instances with what a page shows of each, and where their logs lie."""
    attempt, cycle = RunPaths(run.root).attempt(run.attempts[-1].number), whole(run.attempts[-1].status.get("cycle"))
    return {
        "name": service.name,
        "ready": service.ready,
        "wanted": service.wanted,
        "gate": service.gate,
        "restarts": service.restarts,
        "load": vars(total(load for _, load in service.loads)) if service.loads else None,
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


def _failure(seen: Timeline, failure: diagnosis.FailureSummary) -> dict[str, Any]:
    when = _ms(seen, failure.time) if failure.time is not None else None
    return {**vars(failure), "time": when, "tail": [log_line(line) for line in failure.tail]}


def _happenings(seen: Timeline, run: RunRecord) -> list[list[Any]]:
    """The last of what is worth a line: not the moves of nodes, which the picture shows."""
    found: list[list[Any]] = []
    for event in run.attempts[-1].events if run.attempts else ():
        if event.name in WORTH_SAYING and (event.name, event.fields.get("state")) != ("service", "ready"):
            host = words(event.fields.get("host"))
            details = [words(event.fields.get(name)) for name in ("service", "state", "text", "reason")]
            said = " ".join(filter(None, [host, *details])) or event.name.replace("_", " ")
            found.append([_ms(seen, event.time), event.name, said])
    return found[-LAST_NOTES:]


def _spec(job: dict[str, Any]) -> dict[str, Any]:
    """The resolved job, without what says nothing; of its command and its variables no secrets."""
    shown = {name: value for name, value in job.items() if value not in (None, [], {}, "")}
    if isinstance(shown.get("command"), list):
        shown["command"] = redact_words([str(word) for word in shown["command"]])
    return shown
