"""What a run directory says: its events, statuses and outcomes, read again and again as they grow.

Nothing in it is trusted to be whole: a file may be missing, a line torn, a value of another kind than expected.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from muster.rundir import AttemptPaths, RunPaths, read_record
from muster.rundir.hosts import host_names
from muster.runs.follow import EventFile
from muster.runs.monitor import STATUS_STALE_S
from muster.runs.status import ENDED_STATES, newest_published, read_status


@dataclass(frozen=True)
class Happening:
    """One line of the events. `time` never runs backwards within an attempt, whatever the clocks said."""

    time: float
    name: str
    cycle: int
    term: int
    fields: dict[str, Any]

    @cached_property
    def rank(self) -> int | None:
        return whole(self.fields.get("rank"))


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt: `began` is when its job script did, `ended` when it was over; None where that is not known (yet)."""

    number: int
    events: tuple[Happening, ...] = ()
    status: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    began: float | None = None
    ended: float | None = None
    torn: int = 0  # lines that could not be read


@dataclass(frozen=True)
class RunRecord:
    """A whole run, at one moment. `asked` and `submitted` bound its way into the queue."""

    run_id: str
    root: str
    status: dict[str, Any]  # as `muster status --json`
    job: dict[str, Any]
    submission: dict[str, Any]
    attempts: tuple[AttemptRecord, ...]
    asked: float
    submitted: float
    now: float

    @property
    def live(self) -> bool:
        return self.status["state"] not in ENDED_STATES


class RunReader:
    """Reads a run directory; a further `read` takes only what is new of the events."""

    def __init__(self, run: RunPaths, clock: Callable[[], float] = time.time) -> None:
        self.run, self._clock = run, clock
        self._attempts: dict[int, _AttemptReader] = {}

    def read(self) -> RunRecord:
        run, status = self.run, read_status(self.run)
        for paths in _attempts(run):
            self._attempts.setdefault(paths.number, _AttemptReader(paths))
        attempts = tuple(self._attempts[number].read() for number in sorted(self._attempts))
        job, submission = read_record(run.job), read_record(run.submission)
        first = next((attempt.began for attempt in attempts if attempt.began is not None), None)
        submitted = moment(submission.get("time")) or _written(run.job) or first or self._clock()
        asked = moment(submission.get("asked")) or submitted
        if first is not None:  # clocks differ, and what starts at once may be recorded later than its start
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
        for term in _terms(paths):
            self._files.setdefault(term, _EventFile(paths.events(term), term))
        for file in self._files.values():
            file.read()
        events = _in_order([self._files[term].events for term in sorted(self._files)])
        status, outcome = newest_published(paths) or {}, read_record(paths.outcome)
        began = moment(record(status.get("timings")).get("job_start")) or _written(os.path.join(paths.root, "canary"))
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
    """The events of one term, as far as they have been read."""

    def __init__(self, path: str, term: int) -> None:
        self._file, self._term = EventFile(path), term
        self.events: list[Happening] = []
        self.torn = 0

    def read(self) -> None:
        for fields in self._file.read():
            event = None if fields is None else _happening(fields, self._term)
            if event is not None:
                self.events.append(event)
            else:
                self.torn += 1


def _happening(fields: dict[str, Any], term: int) -> Happening | None:
    when = moment(fields.get("time"))
    return None if when is None else Happening(when, fields["event"], whole(fields.get("cycle")) or 0, term, fields)


def _in_order(terms: list[list[Happening]]) -> tuple[Happening, ...]:
    """Those of all terms, one term after the other. What a fenced lead wrote after its successor began is left out."""
    events: list[Happening] = []
    latest = 0.0
    for number, own in enumerate(terms):
        after = next((later[0].time for later in terms[number + 1 :] if later), math.inf)
        for event in own:
            if event.time > after:
                break
            latest = max(latest, event.time)
            same = event.time == latest
            events.append(event if same else Happening(latest, event.name, event.cycle, event.term, event.fields))
    return tuple(events)


def _ended(
    paths: AttemptPaths, events: tuple[Happening, ...], status: dict[str, Any], outcome: dict[str, Any]
) -> float | None:
    """When the attempt was over; see docs/seeing.md for the cases in which its leader did not say it."""
    said = next((event.time for event in reversed(events) if event.name == "end"), None)
    if said is not None or not outcome:
        return said
    word = max([moment(status.get("updated")) or 0.0, *(event.time for event in events[-1:])])
    recorded = _written(paths.outcome)
    if not word or recorded is None:
        return recorded or word or None
    return recorded if word <= recorded <= word + STATUS_STALE_S else word


def _attempts(run: RunPaths) -> list[AttemptPaths]:
    with contextlib.suppress(OSError):
        numbers = [re.fullmatch(r"attempt-(\d{1,6})", name) for name in os.listdir(run.root)]
        return [run.attempt(int(match[1])) for match in numbers if match]
    return []


def _terms(attempt: AttemptPaths) -> list[int]:
    with contextlib.suppress(OSError):
        names = [re.fullmatch(r"events-(\d{1,6})\.jsonl", name) for name in os.listdir(attempt.root)]
        return [int(match[1]) for match in names if match]
    return []


def _written(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


# -- values of the kind that is expected, or none -------------------------------------------------------------------


def moment(value: Any) -> float | None:
    """A time, if it is one."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 1e11 else None


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1_000_000 else None


def record(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def records(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def words(value: Any) -> str:
    """A text; of anything else nothing."""
    return value if isinstance(value, str) else ""
