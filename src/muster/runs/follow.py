"""Following a run through its directory: events, the driver's output, the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.rundir import AttemptPaths, RunPaths
from muster.runs.monitor import RunMonitor, record_silent_end
from muster.runs.next_attempt import read_next_attempt, slurm_jobs
from muster.runs.release import ends_by_itself, release
from muster.runs.status import read_status
from muster.runs.waiting import Waiting

LOOK_S = 0.1
TELL_S = 2.0  # a job that takes longer to end is spoken of


@dataclass(frozen=True)
class RunEvent:
    """One line of the run's events."""

    fields: dict[str, Any]


@dataclass(frozen=True)
class Output:
    """Bytes that the driver wrote."""

    data: bytes


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    run: str
    run_dir: str
    job_id: str | None
    state: str
    exit_code: int
    end_reason: str
    error: dict[str, Any] | None


class Tail:
    """What is new in a growing file. It is opened anew each time: a handle may go stale on a network filesystem."""

    def __init__(self, path: str) -> None:
        self.path, self._offset = path, 0

    def read(self, most: int = 1 << 20) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read(most)
        except OSError:
            return b""
        self._offset += len(data)
        return data


class EventFile:
    """The events of one term, as they come. A full disk may have torn a line: it is counted, and skipped."""

    def __init__(self, path: str) -> None:
        self._tail, self._rest = Tail(path), b""
        self.path, self.torn = path, 0

    @property
    def torn_at_its_end(self) -> bool:
        """Whether the last line is not whole; of a run that is over it never will be."""
        return _says_anything(self._rest)

    def read(self) -> list[dict[str, Any] | None]:
        """One entry for each line that has come: its fields, or None for one that could not be read."""
        *lines, self._rest = (self._rest + b"".join(iter(self._tail.read, b""))).split(b"\n")
        events = [event_fields(line) for line in lines if _says_anything(line)]
        self.torn += events.count(None)
        return events


def event_fields(line: bytes) -> dict[str, Any] | None:
    """The fields of an event, which has at least a name; None when the line is anything else.

    >>> event_fields(b'{"event": "end"}'), event_fields(b'{"event": "e'), event_fields(b'[1]')
    ({'event': 'end'}, None, None)
    """
    try:
        fields = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None


def _says_anything(line: bytes) -> bool:
    return bool(line.strip(b"\0 \r\t"))


class AttemptTail:
    """Everything new of one attempt."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self.attempt = attempt
        self._events: dict[int, EventFile] = {}  # by term
        self._driver = Tail(attempt.driver_log)
        self._told_of_loss = False

    def read(self) -> Iterator[RunEvent | Output]:
        # Output first: an event that tells of the driver's end must come after what it wrote.
        events = {term: self._file(term).read() for term in self.attempt.terms() or [0]}
        while data := self._driver.read():
            yield Output(data)
        for term, found in events.items():
            for fields in found:
                if fields is not None:
                    yield RunEvent(fields)
                else:
                    yield from self._tell_of_loss(self._file(term))

    def rest(self) -> Iterator[RunEvent]:
        """What is to be said once nothing more will be written."""
        for file in self._events.values():
            if file.torn_at_its_end:
                yield from self._tell_of_loss(file)

    def _tell_of_loss(self, file: EventFile) -> Iterator[RunEvent]:
        if not self._told_of_loss:
            self._told_of_loss = True
            yield RunEvent({"event": "events_lost", "attempt": self.attempt.number, "file": file.path})

    def _file(self, term: int) -> EventFile:
        return self._events.setdefault(term, EventFile(self.attempt.events(term)))


async def follow(run: RunPaths) -> AsyncIterator[RunEvent | Output | RunResult]:
    """Yields what happens; the last item is the result."""
    tail: AttemptTail | None = None
    told: AttemptPaths | None = None  # of this one it was said that another follows
    waiting: Waiting | None = None
    watch, loop = RunMonitor(run), asyncio.get_running_loop()
    while True:
        attempt = run.newest_attempt()
        if attempt is not None and (tail is None or tail.attempt != attempt):
            for item in (*tail.read(), *tail.rest()) if tail is not None else ():  # its last words
                yield item
            tail, waiting = AttemptTail(attempt), Waiting(attempt)
        ended = attempt if attempt is not None and has_outcome(attempt) else None
        if tail is not None:
            for item in tail.read():
                yield item
        if ended is not None and not await loop.run_in_executor(None, watch.goes_on, ended):
            if run.newest_attempt() != ended:
                continue  # the next one began meanwhile
            for item in tail.rest() if tail is not None else ():
                yield item
            async for event in _released(run, ended):
                yield event
            yield result(run)
            return
        if ended is not None and ended != told:
            told = ended
            yield RunEvent({"event": "again", "attempt": ended.number, **read_next_attempt(ended)})
        if waiting is not None and ended is None and (text := waiting.look()) is not None:
            yield RunEvent({"event": "waiting", "text": text})
        gone = await loop.run_in_executor(None, watch.gone, attempt)
        if gone is None or run.newest_attempt() != attempt:
            await asyncio.sleep(LOOK_S)
            continue
        if ended is not None or not (attempt and has_outcome(attempt)):
            with contextlib.suppress(OSError):  # what cannot be recorded is still told
                await loop.run_in_executor(None, record_silent_end, run, gone)
            for item in (*tail.read(), *tail.rest()) if tail is not None else ():  # it may have gone on meanwhile
                yield item
            yield result(run, gone)
            return
        await asyncio.sleep(LOOK_S)


async def _released(run: RunPaths, attempt: AttemptPaths) -> AsyncIterator[RunEvent]:
    """Makes sure that the run's Slurm job ends; tells of it where that takes a while, or a scancel."""
    if ends_by_itself(run, attempt):
        return
    releasing = asyncio.get_running_loop().run_in_executor(None, release, run)
    done, _ = await asyncio.wait([releasing], timeout=TELL_S)
    job = str(slurm_jobs(run))
    if not done:
        reason = result(run).end_reason
        yield RunEvent({"event": "job", "state": "ending", "job": job, "reason": reason})
    cancelled = await releasing
    if cancelled is not None:
        yield RunEvent({"event": "job", "state": "cancelled", "job": str(cancelled), "reason": None})


def has_outcome(attempt: AttemptPaths) -> bool:
    """By listing: a network filesystem may remember for half a minute that a file was not there."""
    try:
        return os.path.basename(attempt.outcome) in os.listdir(attempt.root)
    except OSError:
        return False


def result(run: RunPaths, gone: str | None = None) -> RunResult:
    """The result as recorded; `gone` says why there is no record."""
    status = read_status(run)
    recorded = status.get("exit_code")
    return RunResult(
        run=run.run_id,
        run_dir=run.root,
        job_id=status["job_id"],
        state=status["state"] if recorded is not None else "failed",
        exit_code=INFRASTRUCTURE_FAILED if recorded is None else recorded,
        end_reason=status["end_reason"] or gone or f"no readable outcome in {run.root}: is its disk full?",
        error=status["error"],
    )
