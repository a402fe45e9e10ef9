"""Following a run through its directory: events, the driver's output, the end."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from muster.backends.errors import BackendError
from muster.backends.slurm import client
from muster.board import AttemptPaths, RunPaths, read_json
from muster.runs.status import newest_published, read_status

LOOK_S = 0.1
ASK_SLURM_S = 30.0  # only while nothing is heard of the run


@dataclass(frozen=True)
class Event:
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
            if os.stat(self.path).st_size <= self._offset:
                return b""
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read(most)
        except OSError:
            return b""
        self._offset += len(data)
        return data


class AttemptTail:
    """Everything new of one attempt."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self.attempt = attempt
        self._events, self._rest = Tail(attempt.events()), b""
        self._driver = Tail(attempt.driver_log)

    def read(self) -> Iterator[Event | Output]:
        # Output first: an event that tells of the driver's end must come after what it wrote.
        events = b"".join(iter(self._events.read, b""))
        while data := self._driver.read():
            yield Output(data)
        *lines, self._rest = (self._rest + events).split(b"\n")
        for line in lines:
            yield Event(json.loads(line))


async def follow(run: RunPaths) -> AsyncIterator[Event | Output | RunResult]:
    """Yields what happens; the last item is the result."""
    tail: AttemptTail | None = None
    watch = Liveness(run)
    while True:
        attempt = run.newest_attempt()
        if attempt is not None and (tail is None or tail.attempt != attempt):
            for item in tail.read() if tail is not None else ():  # its last words
                yield item
            tail = AttemptTail(attempt)
        ended = attempt is not None and os.path.exists(attempt.outcome)
        if tail is not None:
            for item in tail.read():
                yield item
        if ended:
            yield result(run)
            return
        gone = await asyncio.get_running_loop().run_in_executor(None, watch.gone, attempt)
        if gone is not None and not (attempt and os.path.exists(attempt.outcome)):
            yield result(run, gone)
            return
        await asyncio.sleep(LOOK_S)


def result(run: RunPaths, gone: str | None = None) -> RunResult:
    """The result as recorded; `gone` says why there is no record."""
    status = read_status(run)
    recorded = status.get("exit_code")
    return RunResult(
        run=run.run_id,
        run_dir=run.root,
        job_id=status["job_id"],
        state=status["state"] if recorded is not None else "failed",
        exit_code=125 if recorded is None else recorded,
        end_reason=status["end_reason"] or gone or "ended",
        error=status["error"],
    )


class Liveness:
    """Notices that a run ended without saying so: its job script is gone, or Slurm knows the job as ended."""

    def __init__(self, run: RunPaths) -> None:
        self._submission = read_json(run.submission) or {}
        self._heard = time.monotonic()
        self._updated: Any = None
        self._asked = time.monotonic()

    def gone(self, attempt: AttemptPaths | None) -> str | None:
        """Why nothing more will come; None while something may."""
        pid = self._submission.get("pid")
        if pid is not None:
            return (
                None if self._submission["host"] != os.uname().nodename or _exists(pid) else "its job script was killed"
            )
        now = time.monotonic()
        if now - self._heard < ASK_SLURM_S or now - self._asked < ASK_SLURM_S:
            return None
        updated = (newest_published(attempt) or {}).get("updated") if attempt else None
        if updated != self._updated:
            self._updated, self._heard = updated, now
            return None
        self._asked = now
        return self._ask_slurm()

    def _ask_slurm(self) -> str | None:
        job_id = self._submission.get("job_id")
        if job_id is None:
            return None
        try:
            state = client.job_state(job_id)
        except BackendError:
            return None
        return (
            f"Slurm job {job_id} is {state or 'unknown to Slurm'}" if state is None or state in client.ENDED else None
        )


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
