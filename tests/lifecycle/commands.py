"""Commands without the data that follows from the state of the run, as most tests compare them.

The invariants check the rest of every command: its cycle, rank, reason, outcome and deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from muster.lifecycle.events import Command


@dataclass(frozen=True)
class StartHead:
    """Start the head, in the current cycle."""


@dataclass(frozen=True)
class StartWorker:
    """Start a worker with the rank of this node."""

    node_index: int


@dataclass(frozen=True)
class StartServices:
    """Start services in the current cycle."""

    node_index: int
    services: tuple[str, ...]


@dataclass(frozen=True)
class StartDriver:
    """Start the driver of the current cycle."""


@dataclass(frozen=True)
class EndDriver:
    """End the driver of the current cycle."""

    grace: float


@dataclass(frozen=True)
class StopNode:
    """Stop a node in the current cycle, with the outcome of the run."""

    node_index: int


@dataclass(frozen=True)
class BeginCycle:
    """Begin the current cycle."""


@dataclass(frozen=True)
class Rejoin:
    """Admit a node to the current cycle."""

    node_index: int


@dataclass(frozen=True)
class Yield:
    """Step down."""

    reason: str
    successor: int


@dataclass(frozen=True)
class Conclude:
    """End the run with its outcome."""


BRIEF: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        StartHead,
        StartWorker,
        StartServices,
        StartDriver,
        EndDriver,
        StopNode,
        BeginCycle,
        Rejoin,
        Yield,
        Conclude,
    )
}


def brief(commands: Iterable[Command]) -> list[Any]:
    """Return the commands without the data that follows from the state of the run."""
    kinds = [(command, BRIEF[type(command).__name__]) for command in commands]
    return [kind(*(getattr(command, field.name) for field in fields(kind))) for command, kind in kinds]
