"""What is run, and how it ended, as data."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, field
from typing import Any

from muster.sandbox.output import Captured


@dataclass(frozen=True)
class ProgramStep:
    """One process tree: what the execution is told, what it reads, how long it may take."""

    job: dict[str, Any]
    timeout: float
    stdin: bytes = b""


@dataclass(frozen=True)
class Program:
    """Steps in one place, one after the other; a step that fails is the last."""

    steps: tuple[ProgramStep, ...]
    max_output: int
    language: str
    workspace: str | None = None
    within: float = math.inf  # seconds, for all steps together


@dataclass(frozen=True)
class ResourceUsage:
    """What a tree took."""

    wall_s: float
    cpu_s: float
    max_rss_kb: int

    def to_json(self) -> dict[str, float]:
        return {"wall_s": round(self.wall_s, 4), "cpu_s": round(self.cpu_s, 4), "max_rss_kb": self.max_rss_kb}


@dataclass(frozen=True)
class ProgramResult:
    """The end of a step.

    `reason` is None when it ended by itself, else what ended it: timeout, memory, processes, disk, stopped (the
    sandbox is), lost (its worker was), deleted (its workspace was).
    """

    exit_code: int | None
    signal: int | None
    reason: str | None
    stdout: Captured
    stderr: Captured
    usage: ResourceUsage

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0 and self.reason is None

    @property
    def words(self) -> str:
        """What a person reads when a limit, or a signal, ended it."""
        if self.reason is not None and self.reason in REASONS:
            return REASONS[self.reason]
        if self.signal is not None:
            try:
                return f"it was ended by {signal.Signals(self.signal).name}"
            except ValueError:
                return f"it was ended by signal {self.signal}"
        return f"it exited with {self.exit_code}"


REASONS = {
    "memory": "it needed more memory than it may have",
    "processes": "it had more processes than it may have",
    "disk": "it wrote more than it may",
    "stopped": "the sandbox is stopping",
    "lost": "its worker was lost",
    "deleted": "its workspace was deleted",
}


@dataclass(frozen=True)
class CellResult:
    """The end of a session's cell. `status` is completed, error, timeout or lost (with `why`)."""

    status: str
    stdout: Captured
    stderr: Captured
    created: bool
    wall_s: float
    why: str = ""
    usage: ResourceUsage | None = field(default=None)
