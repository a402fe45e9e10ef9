"""Follow a run through its directory: events, the driver's output, the result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.process.fresh import refresh
from muster.process.log_reader import LogReader
from muster.rundir import AttemptPaths, RunPaths, is_listed, read_record
from muster.rundir.listing import AttemptListing, read_listing
from muster.rundir.poll_pace import PollPace
from muster.runs.leader_wait import LeaderWait
from muster.runs.monitor import RunMonitor, record_silent_end
from muster.runs.next_attempt import next_attempt_message, read_next_attempt
from muster.runs.own_jobs import slurm_jobs
from muster.runs.queue_wait import QueueWait
from muster.runs.release import release, script_ends_job
from muster.runs.status import read_status

FOLLOW_POLL_S = 0.1  # while there is news
FOLLOW_IDLE_POLL_S = 0.5  # while there is none: every poll of every follower costs the server of a shared filesystem
ATTEMPT_POLL_S = 1.0  # a further attempt begins seconds after the end of the one before
FILESYSTEM_TIMEOUT_S = 120.0  # in which an outcome that is listed must become readable
CACHE_TIMEOUT_S = 70.0  # network filesystems trust for up to 60 s that a file has not grown
RELEASE_NOTICE_S = 2.0  # a job that takes longer to end is reported


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
    """The result of a run."""

    run: str
    run_dir: str
    job_id: str | None
    state: str
    exit_code: int
    end_reason: str
    error: dict[str, Any] | None


class Tail:
    """Reads new data of a growing file. It is reopened each time: a handle may go stale on a network filesystem."""

    def __init__(self, path: str) -> None:
        self.path, self._offset = path, 0

    @property
    def offset(self) -> int:
        """The number of bytes read so far."""
        return self._offset

    def read(self, max_bytes: int = 1 << 20) -> bytes:
        try:
            with open(self.path, "rb") as file:
                refresh(file.fileno())
                file.seek(self._offset)
                data = file.read(max_bytes)
        except OSError:
            return b""
        self._offset += len(data)
        return data


class EventFile:
    """Reads the events of one term. A line that a full disk has torn is counted and skipped."""

    def __init__(self, path: str) -> None:
        self._tail, self._rest = Tail(path), b""
        self.path, self.torn = path, 0

    @property
    def offset(self) -> int:
        return self._tail.offset

    @property
    def ends_torn(self) -> bool:
        """Whether the last line is incomplete; after the end of the run it stays so."""
        return _has_content(self._rest)

    def read(self) -> list[dict[str, Any] | None]:
        """Return an entry for each new line: its fields, or None for an unreadable one."""
        *lines, self._rest = (self._rest + b"".join(iter(self._tail.read, b""))).split(b"\n")
        events = [event_fields(line) for line in lines if _has_content(line)]
        self.torn += events.count(None)
        return events


def event_fields(line: bytes) -> dict[str, Any] | None:
    """Parse an event, which has at least a name; return None for any other line.

    >>> event_fields(b'{"event": "end"}'), event_fields(b'{"event": "e'), event_fields(b'[1]')
    ({'event': 'end'}, None, None)
    """
    try:
        fields = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None


def _has_content(line: bytes) -> bool:
    return bool(line.strip(b"\0 \r\t"))


class AttemptTail:
    """Reads new events and output of one attempt."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self.attempt = attempt
        self._events: dict[int, EventFile] = {}  # by term
        self._driver = LogReader(attempt.driver_log)
        self._loss_reported = False

    def read(self, listing: AttemptListing | None = None) -> Iterator[RunEvent | Output]:
        """Yield what is new. `listing`: of the attempt's directory; None to list it now."""
        listing = listing or read_listing(self.attempt)
        # Events are read first but yielded last: the event of the driver's end must come after its output.
        events = {term: self._file(term).read() for term in (listing.terms if listing else []) or [0]}
        while data := self._driver.read_with_notice():
            yield Output(data)
        for term, found in events.items():
            for fields in found:
                if fields is not None:
                    yield RunEvent(fields)
                else:
                    yield from self._report_loss(self._file(term))

    def is_behind(self, written: Mapping[str, Any]) -> bool:
        """Whether less was read than the leader had `written`, as the outcome says: caches may hide the last part."""
        driver, events = written.get("driver_bytes", 0), written.get("events_bytes", 0)
        term = max(self._events, default=0)
        return bool(self._driver.position < driver or self._file(term).offset < events)

    def rest(self) -> Iterator[RunEvent]:
        """Return the events to add once the attempt has written its last."""
        for file in self._events.values():
            if file.ends_torn:
                yield from self._report_loss(file)

    def _report_loss(self, file: EventFile) -> Iterator[RunEvent]:
        if not self._loss_reported:
            self._loss_reported = True
            yield RunEvent({"event": "events_lost", "attempt": self.attempt.number, "file": file.path})

    def _file(self, term: int) -> EventFile:
        return self._events.setdefault(term, EventFile(self.attempt.events(term)))


async def follow(run: RunPaths) -> AsyncIterator[RunEvent | Output | RunResult]:
    """Yield events and output as they appear; the last item is the result."""
    tail: AttemptTail | None = None
    announced: AttemptPaths | None = None  # the attempt whose successor was announced
    leader_wait, queue_wait = None, QueueWait(run)
    monitor, loop, pace = RunMonitor(run), asyncio.get_running_loop(), PollPace(FOLLOW_POLL_S, FOLLOW_IDLE_POLL_S)
    attempt, attempts_due, news = run.newest_attempt(), 0.0, True
    while True:
        began = time.monotonic()
        if began >= attempts_due:
            attempt, attempts_due = run.newest_attempt(), began + (ATTEMPT_POLL_S if attempt else 0.0)
        if attempt is not None and (tail is None or tail.attempt != attempt):
            for item in (*tail.read(), *tail.rest()) if tail is not None else ():
                yield item
            tail, leader_wait = AttemptTail(attempt), LeaderWait(attempt)
        listed = time.monotonic()
        listing = read_listing(attempt) if attempt is not None else None
        latency, news = time.monotonic() - listed, False
        ended = attempt if listing is not None and listing.has_outcome else None
        if tail is not None:
            for item in tail.read(listing):
                news = True
                yield item
        if ended is not None and not await loop.run_in_executor(None, monitor.will_continue, ended):
            if run.newest_attempt() != ended:
                attempts_due = 0.0
                continue  # the next attempt has begun
            await _wait_until_readable(ended.outcome)
            written, deadline = read_record(ended.outcome), time.monotonic() + CACHE_TIMEOUT_S
            while tail is not None and tail.is_behind(written) and time.monotonic() < deadline:
                await asyncio.sleep(FOLLOW_POLL_S)
                for item in tail.read():
                    yield item
            for item in tail.rest() if tail is not None else ():
                yield item
            async for event in _released(run, ended):
                yield event
            yield read_result(run)
            return
        if ended is not None and ended != announced:
            announced = ended
            yield RunEvent({"event": "again", "attempt": ended.number, **read_next_attempt(ended)})
        if leader_wait is not None and ended is None and (text := leader_wait.poll()) is not None:
            yield RunEvent({"event": "waiting", "text": text})
        if attempt is None and (text := await loop.run_in_executor(None, queue_wait.poll)) is not None:
            yield RunEvent({"event": "waiting", "text": text})
        dead = await loop.run_in_executor(None, monitor.poll_dead, attempt)
        if dead is None or run.newest_attempt() != attempt:
            await asyncio.sleep(pace.after(news, latency))
            continue
        if ended is not None or not (attempt and is_listed(attempt.outcome)):
            with contextlib.suppress(OSError):  # e.g. a full disk: the result is yielded all the same
                await loop.run_in_executor(None, record_silent_end, run, dead)
            for item in (*tail.read(), *tail.rest()) if tail is not None else ():  # it may have written more
                yield item
            yield read_result(run, dead)
            return
        await asyncio.sleep(FOLLOW_POLL_S)


async def _wait_until_readable(path: str) -> None:
    """Wait while the filesystem fails to open a file that is listed: its server may be gone for a minute."""
    deadline = time.monotonic() + FILESYSTEM_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.read()
            return
        await asyncio.sleep(FOLLOW_IDLE_POLL_S)


async def _released(run: RunPaths, attempt: AttemptPaths) -> AsyncIterator[RunEvent]:
    """Release the run's Slurm job; yield an event if that takes long or needs a scancel."""
    if script_ends_job(run, attempt):
        return
    releasing = asyncio.get_running_loop().run_in_executor(None, release, run)
    done, _ = await asyncio.wait([releasing], timeout=RELEASE_NOTICE_S)
    job = str(slurm_jobs(run))
    if not done:
        reason = read_result(run).end_reason
        yield RunEvent({"event": "job", "state": "ending", "job": job, "reason": reason})
    cancelled = await releasing
    if cancelled is not None:
        yield RunEvent({"event": "job", "state": "cancelled", "job": str(cancelled), "reason": None})


def read_result(run: RunPaths, dead: str | None = None) -> RunResult:
    """Return the recorded result; `dead` is the reason for a run that recorded none."""
    status = read_status(run)
    recorded = status.get("exit_code")
    refusal = next_attempt_message(status["sequel"] or {}) if status["end_reason"] else None
    return RunResult(
        run=run.run_id,
        run_dir=run.root,
        job_id=status["job_id"],
        state=status["state"] if recorded is not None else "failed",
        exit_code=INFRASTRUCTURE_FAILED if recorded is None else recorded,
        end_reason="; ".join(filter(None, [status["end_reason"], refusal]))
        or dead
        or f"no readable outcome in {run.root}: is its disk full?",
        error=status["error"],
    )
