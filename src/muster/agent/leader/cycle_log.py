"""Copies of each cycle's part of the driver's log, beside the one log of all cycles."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass

from muster.agent.leader.driver import mark_cycle
from muster.rundir import AttemptPaths, make_private_dirs, private_opener

logger = logging.getLogger(__name__)

COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class CycleLogPart:
    """The byte range of a cycle in the driver's log."""

    cycle: int
    start: int
    end: int


class CycleLogs:
    """`begin` and `end` are called in order on one thread; `copy` may run on another."""

    def __init__(self, attempt: AttemptPaths) -> None:
        self._attempt = attempt
        self._starts: dict[int, int] = {}

    def begin(self, cycle: int, reason: str) -> int:
        """Mark the start of the cycle in the log and return its offset."""
        self._starts[cycle] = mark_cycle(self._attempt.driver_log, cycle, reason)
        return self._starts[cycle]

    def end(self, cycle: int) -> CycleLogPart | None:
        """Return the cycle's part, before the next cycle writes; None if its driver never began."""
        if cycle not in self._starts:
            return None
        with contextlib.suppress(OSError), open(self._attempt.driver_log, "rb") as file:
            return CycleLogPart(cycle, self._starts[cycle], file.seek(0, os.SEEK_END))
        return None

    def copy(self, part: CycleLogPart) -> None:
        """Copy the part, completely or not at all; a failure (a full disk) is only logged."""
        path = self._attempt.cycle_driver_log(part.cycle)
        try:
            make_private_dirs(os.path.dirname(path))
            _copy(self._attempt.driver_log, part, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)
        except OSError as error:
            logger.warning("%s could not be written: %s", path, error)
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.tmp")


def _copy(log: str, part: CycleLogPart, target: str) -> None:
    with open(log, "rb") as source, open(target, "wb", opener=private_opener) as copy:
        source.seek(part.start)
        left = part.end - part.start
        while left > 0 and (data := source.read(min(left, COPY_BYTES))):
            copy.write(data)
            left -= len(data)
