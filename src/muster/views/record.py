"""Read the contents of a run directory: events, statuses and outcomes, incrementally as they grow.

The files may be incomplete: a file may be missing, a line truncated, a value of another type than expected.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from muster.rundir import AttemptPaths, RunPaths, read_record, written_at
from muster.rundir.hosts import host_names
from muster.rundir.records import Submission, newest_published, read_submission
from muster.runs.follow import EventFile
from muster.runs.monitor import STATUS_STALE_S
from muster.runs.status import ENDED_STATES, read_status
from muster.views.json_values import as_dict, as_int, as_time


@dataclass(frozen=True)
class RecordedEvent:
    """One line of an event file. `time` never decreases within an attempt, even where clocks differ."""

    time: float
    name: str
    cycle: int
    term: int
    fields: dict[str, Any]

    @cached_property
    def node_index(self) -> int | None:
        return as_int(self.fields.get("rank"))


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt; `began` is the start of its job script, `ended` its end, each None while unknown."""

    number: int
    events: tuple[RecordedEvent, ...] = ()
    status: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    began: float | None = None
    ended: float | None = None
    torn: int = 0  # lines that could not be read


@dataclass(frozen=True)
class RunRecord:
    """A snapshot of a run. `asked` and `submitted` are the times of the request and of the submission to the queue."""

    run_id: str
    root: str
    status: dict[str, Any]  # as `muster status --json`
    job: dict[str, Any]
    submission: Submission
    attempts: tuple[AttemptRecord, ...]
    asked: float
    submitted: float
    now: float

    @property
    def live(self) -> bool:
        return self.status["state"] not in ENDED_STATES


class RunReader:
    """Read a run directory; further calls of `read` parse only new events."""

    def __init__(self, run: RunPaths, clock: Callable[[], float] = time.time) -> None:
        self.run, self._clock = run, clock
        self._attempts: dict[int, _AttemptReader] = {}

    def read(self) -> RunRecord:
        run, status = self.run, read_status(self.run)
        for paths in run.attempts():
            self._attempts.setdefault(paths.number, _AttemptReader(paths))
        attempts = tuple(self._attempts[number].read() for number in sorted(self._attempts))
        job, submission = read_record(run.job), read_submission(run)
        first = next((attempt.began for attempt in attempts if attempt.began is not None), None)
        submitted = as_time(submission.time) or written_at(run.job) or first or self._clock()
        asked = as_time(submission.asked) or submitted
        if first is not None:  # clocks differ, and a job that starts at once may start before its record is written
            submitted = min(submitted, first)
        return RunRecord(
            run.run_id, run.root, status, job, submission, attempts, min(asked, submitted), submitted, self._clock()
        )


class _AttemptReader:
    def __init__(self, paths: AttemptPaths) -> None:
        self._paths = paths
        self._files: dict[int, _EventFile] = {}

    def read(self) -> AttemptRecord:
        paths = self._paths
        for term in paths.event_terms():
            self._files.setdefault(term, _EventFile(paths.events(term), term))
        for file in self._files.values():
            file.read()
        events = _in_order([self._files[term].events for term in sorted(self._files)])
        status, outcome = newest_published(paths) or {}, read_record(paths.outcome)
        began = as_time(as_dict(status.get("timings")).get("job_start")) or written_at(paths.canary)
        return AttemptRecord(
            paths.number,
            events,
            status,
            outcome,
            tuple(host_names(paths)),
            began or (events[0].time if events else None),
            _ended(paths, events, status, outcome),
            sum(file.torn for file in self._files.values()),
        )


class _EventFile:
    """The events of one term that have been read so far."""

    def __init__(self, path: str, term: int) -> None:
        self._file, self._term = EventFile(path), term
        self.events: list[RecordedEvent] = []
        self.torn = 0

    def read(self) -> None:
        for fields in self._file.read():
            event = None if fields is None else _recorded_event(fields, self._term)
            if event is not None:
                self.events.append(event)
            else:
                self.torn += 1


def _recorded_event(fields: dict[str, Any], term: int) -> RecordedEvent | None:
    when = as_time(fields.get("time"))
    return (
        None if when is None else RecordedEvent(when, fields["event"], as_int(fields.get("cycle")) or 0, term, fields)
    )


def _in_order(terms: list[list[RecordedEvent]]) -> tuple[RecordedEvent, ...]:
    """Return the events of all terms in order, without those that a fenced leader wrote after its successor began."""
    events: list[RecordedEvent] = []
    latest = 0.0
    for number, term in enumerate(terms):
        successor = next((later[0].time for later in terms[number + 1 :] if later), math.inf)
        for event in term:
            if event.time > successor:
                break
            latest = max(latest, event.time)
            same = event.time == latest
            events.append(event if same else RecordedEvent(latest, event.name, event.cycle, event.term, event.fields))
    return tuple(events)


def _ended(
    paths: AttemptPaths, events: tuple[RecordedEvent, ...], status: dict[str, Any], outcome: dict[str, Any]
) -> float | None:
    """Return when the attempt ended; docs/explanation/views.md lists the cases in which its leader recorded no end."""
    end = next((event.time for event in reversed(events) if event.name == "end"), None)
    if end is not None or not outcome:
        return end
    last_update = max([as_time(status.get("updated")) or 0.0, *(event.time for event in events[-1:])])
    recorded = written_at(paths.outcome)
    if not last_update or recorded is None:
        return recorded or last_update or None
    return recorded if last_update <= recorded <= last_update + STATUS_STALE_S else last_update
