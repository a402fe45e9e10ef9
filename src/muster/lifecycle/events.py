"""What flows into the protocol (events) and out of it (commands). Plain data.

`rank` is everywhere the node's number in the allocation. Events about the work of a cycle carry its number: one of
another cycle changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from muster.lifecycle.services import ServiceState
from muster.lifecycle.topology import NOWHERE, NodeLocation


@dataclass(frozen=True)
class Arrived:
    """A node's agent joined."""

    rank: int
    host: str
    place: NodeLocation = NOWHERE


@dataclass(frozen=True)
class HeadUp:
    """The Ray head is alive: workers can join it."""

    cycle: int = 0


@dataclass(frozen=True)
class NodeReady:
    """A node's part of Ray is alive in the cluster."""

    rank: int
    cycle: int = 0


@dataclass(frozen=True)
class NodeFailed:
    """A node said, or the launcher said of it, what went wrong."""

    rank: int
    phase: str
    reason: str
    cycle: int = 0


@dataclass(frozen=True)
class NodeLost:
    """A node's connection ended, or it fell silent."""

    rank: int
    reason: str


@dataclass(frozen=True)
class DriverEnded:
    """The driver ended; `code` is what a shell would report, `how` says it in words."""

    code: int
    how: str
    cycle: int = 0


@dataclass(frozen=True)
class DriverStalled:
    """The driver lives, and has shown no progress for longer than it may."""

    reason: str
    cycle: int = 0


@dataclass(frozen=True)
class StopRequested:
    """Somebody outside wants the run to end: a person, or Slurm with a signal."""

    reason: str
    signal: int
    grace: float  # what the driver may take to leave


@dataclass(frozen=True)
class NodeGone:
    """A node has verified that nothing of the run is left on it: it is clean for this cycle."""

    rank: int
    cycle: int = 0


@dataclass(frozen=True)
class Health:
    """A node that waits has checked itself."""

    rank: int
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Progress:
    """The driver of this cycle has got on with its work."""

    cycle: int = 0


@dataclass(frozen=True)
class ServiceReport:
    """What a node says of its instance of a service, and in words why: `starting` that it is not ready yet."""

    service: str
    rank: int
    state: ServiceState
    words: str = ""
    cycle: int = 0


@dataclass(frozen=True)
class Tick:
    """Time passed; deadlines are looked at."""


Event = Union[
    Arrived,
    HeadUp,
    NodeReady,
    NodeFailed,
    NodeLost,
    DriverEnded,
    DriverStalled,
    StopRequested,
    NodeGone,
    Health,
    Progress,
    ServiceReport,
    Tick,
]


@dataclass(frozen=True)
class StartHead:
    """Start the Ray head on the leader's node."""


@dataclass(frozen=True)
class StartWorker:
    """Start a Ray worker on this node."""

    rank: int


@dataclass(frozen=True)
class StartServices:
    """Start these services on this node."""

    rank: int
    services: tuple[str, ...]


@dataclass(frozen=True)
class StartDriver:
    """Every node is ready: start the user's command."""


@dataclass(frozen=True)
class EndDriver:
    """End the driver: TERM, then KILL after the grace."""

    grace: float


@dataclass(frozen=True)
class StopNode:
    """End everything of the run on this node, collect its logs, and report gone."""

    rank: int


@dataclass(frozen=True)
class BeginCycle:
    """The old driver is gone: make everything of the leader's ready for the next cycle."""


@dataclass(frozen=True)
class Rejoin:
    """The node is clean: welcome it to the new cycle."""

    rank: int


@dataclass(frozen=True)
class Yield:
    """The leader's own node is of no use: let another one leader, which begins the next cycle."""

    reason: str


@dataclass(frozen=True)
class Conclude:
    """The run is over; the outcome is in the protocol's `outcome`."""


Command = Union[
    StartHead, StartWorker, StartServices, StartDriver, EndDriver, StopNode, BeginCycle, Rejoin, Yield, Conclude
]


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended. The first recorded reason stands."""

    state: str  # succeeded | failed | stopped
    exit_code: int
    end_reason: str
    node: str | None = None
    rank: int | None = None
    phase: str | None = None
    lost: bool = False  # the node is gone, rather than that something failed on it
