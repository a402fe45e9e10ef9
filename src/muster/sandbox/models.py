"""Programs, their results and their resource usage, as data."""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, field
from typing import Any

from muster.sandbox.output import Captured


def owned_name(name: str, owner: str) -> str:
    """Return the name of a session or workspace among those of all owners; "" is the server's own user."""
    return f"{name}\0{owner}" if owner else name


def public_name(owned: str) -> str:
    """Return the name that the owner gave."""
    return owned.partition("\0")[0]


@dataclass(frozen=True)
class ProgramStep:
    """One process tree: the job that the execution receives, its input, its timeout in seconds."""

    job: dict[str, Any]
    timeout: float
    stdin: bytes = b""
    always: bool = False  # it runs also after a step that failed


@dataclass(frozen=True)
class Program:
    """Steps that run one after the other in the same directory; after the first failure only those that run always."""

    steps: tuple[ProgramStep, ...]
    max_output: int
    language: str
    workspace: str | None = None
    within: float = math.inf  # seconds, for all steps together
    owner: str = ""  # to whom its workspace belongs
    client: str = ""  # among which slots are divided

    @property
    def timeout(self) -> float:
        """The seconds that it can take at most."""
        return min(self.within, sum(step.timeout for step in self.steps))


@dataclass(frozen=True)
class ResourceUsage:
    """Time and memory that a process tree used."""

    wall_s: float
    cpu_s: float
    max_rss_kb: int

    def to_json(self) -> dict[str, float]:
        return {"wall_s": round(self.wall_s, 4), "cpu_s": round(self.cpu_s, 4), "max_rss_kb": self.max_rss_kb}


@dataclass(frozen=True)
class ProgramResult:
    """The result of a step.

    `reason` is None if it ended by itself, otherwise the cause: a key of REASONS, or timeout.
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
    def message(self) -> str:
        """The reason of the end, for users."""
        if self.reason is not None and self.reason in REASONS:
            return REASONS[self.reason]
        if self.signal is not None:
            try:
                return f"it was ended by {signal.Signals(self.signal).name}"
            except ValueError:
                return f"it was ended by signal {self.signal}"
        return f"it exited with {self.exit_code}"


REASONS = {
    "memory": "it exceeded its memory limit",
    "processes": "it exceeded its limit of processes",
    "disk": "it exceeded its limit of written data",
    "connections": "it exceeded its limit of connections",
    "node_memory": "the node or the sandbox ran out of memory, and this program used the most",
    "background": "its processes went on between two cells for longer than the last cell was allowed to take",
    "stopped": "the sandbox is stopping",
    "lost": "its worker was lost",
    "deleted": "its workspace was deleted",
}


@dataclass(frozen=True)
class CellResult:
    """The result of a session's cell. `status` is completed, error, timeout or lost (for the reason `why`)."""

    status: str
    stdout: Captured
    stderr: Captured
    created: bool
    wall_s: float
    why: str = ""
    usage: ResourceUsage | None = field(default=None)


def refusal(reason: str) -> dict[str, Any]:
    """Return the body of the response to a request of which nothing was run: clients expect these keys in every one."""
    return {"error": reason, "process_status": "error", "stdout": "", "stderr": reason + "\n"}
