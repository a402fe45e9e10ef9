"""Watches the sections of the job's processes on a node: reports those that last too long, and keeps their times."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from muster.agent.control.codec import Message
from muster.agent.control.messages import SectionReport
from muster.agent.health.section_limits import ProcessSection, SectionTimes
from muster.agent.job import Identity, Job
from muster.rundir import read_record, write_json
from muster.sections import decode_record

logger = logging.getLogger(__name__)

SECTION_POLL_S = 0.5  # of a directory on the node's disk
PREFIX = "process-"


class SectionWatch:
    """Watches the processes of one cycle. Files are read on a thread: a disk may hang."""

    def __init__(self, identity: Identity, directory: str, cycle: int, send: Callable[[Message], None]) -> None:
        """`directory`: of the processes' files; `send` sends a message to the leader."""
        self._identity, self._directory, self._cycle, self._send = identity, directory, cycle, send
        self._node_index = identity.node_index
        self._times: SectionTimes | None = None
        self._reported: set[tuple[int, str | None, float]] = set()  # overdue ones: pid, section and its begin
        self._records: list[dict[str, Any]] = []
        self._task = asyncio.create_task(self._run())

    async def report(self, overdue: bool = False) -> None:
        """Send what each process does."""
        found = await asyncio.to_thread(self._assess)
        if found:
            self._send(SectionReport(tuple(found), overdue, self._cycle))

    async def close(self) -> None:
        """Stop, and keep the times for later cycles and attempts."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._keep)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SECTION_POLL_S)
            found = await asyncio.to_thread(self._assess)
            if self._new_overdue(found):
                self._send(SectionReport(tuple(found), True, self._cycle))

    def _new_overdue(self, found: list[ProcessSection]) -> bool:
        """Return whether a process is overdue in a section that was not reported yet."""
        now = time.monotonic()
        overdue = {(one.pid, one.section, round(now - one.seconds)) for one in found if one.overdue}
        known = {(pid, section, since + late) for pid, section, since in self._reported for late in (-1, 0, 1)}
        self._reported |= overdue
        return bool(overdue - known)

    def _assess(self) -> list[ProcessSection]:
        """Return what each living process does. Called off the event loop."""
        records = self._read()
        if not records:
            return []
        if self._times is None:
            try:
                minimum = Job.load(self._identity.run).hang_min_time
            except (OSError, ValueError) as error:
                logger.warning("sections are not watched yet: %s", error)
                return []
            self._times = SectionTimes(minimum, read_record(self._identity.run.section_times(self._node_index)))
        self._records = records
        return self._times.assess(records, time.monotonic())

    def _read(self) -> list[dict[str, Any]]:
        try:
            names = [name for name in os.listdir(self._directory) if name.startswith(PREFIX)]
        except OSError:
            return []
        found = []
        for name in sorted(names):
            try:
                with open(os.path.join(self._directory, name), "rb") as file:
                    record = decode_record(file.read())
                os.kill(int(name[len(PREFIX) :]), 0)
            except (OSError, ValueError):
                continue  # the process has ended
            if record is not None:
                found.append(record)
        return found

    def _keep(self) -> None:
        if self._times is not None and self._records:
            path = self._identity.run.section_times(self._node_index)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write_json(path, self._times.samples(self._records))
