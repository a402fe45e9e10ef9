"""Events that go into the state machine and commands that come out of it. Plain data.

`rank` is the node's number in the allocation. Events about a cycle carry its number and are ignored in other cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from muster.lifecycle.services import ServiceState
from muster.lifecycle.topology import UNKNOWN_LOCATION, NodeLocation


@dataclass(frozen=True)
class Arrived:
    """The agent of a node joined."""

    rank: int
    host: str
    location: NodeLocation = UNKNOWN_LOCATION


@dataclass(frozen=True)
class HeadUp:
    """The Ray head is alive: workers can join it."""

    cycle: int = 0


@dataclass(frozen=True)
class NodeReady:
    """Ray on this node has joined the cluster."""

    rank: int
    cycle: int = 0


@dataclass(frozen=True)
class NodeFailed:
    """A node, or the launcher on its behalf, reported a failure."""

    rank: int
    phase: str
    reason: str
    cycle: int = 0


@dataclass(frozen=True)
class NodeLost:
    """The connection to a node ended, or its heartbeat timed out."""

    rank: int
    reason: str


@dataclass(frozen=True)
class DriverEnded:
    """The driver ended; `code` is the shell's exit code, `how` describes the end in text."""

    code: int
    how: str
    cycle: int = 0


@dataclass(frozen=True)
class DriverStalled:
    """The driver is alive but exceeded the time limit without progress."""

    reason: str
    cycle: int = 0


@dataclass(frozen=True)
class StopRequested:
    """A user, or Slurm with a signal, requested the end of the run."""

    reason: str
    signal: int
    grace: float  # seconds that the driver has to exit


@dataclass(frozen=True)
class NodeGone:
    """A node verified that no process of the run is left on it: it is clean for this cycle."""

    rank: int
    cycle: int = 0


@dataclass(frozen=True)
class Health:
    """A waiting node ran its health check."""

    rank: int
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Progress:
    """The driver of this cycle made progress."""

    cycle: int = 0


@dataclass(frozen=True)
class ServiceReport:
    """A node reported the state of its service instance; `detail` gives the reason, e.g. why it is still starting."""

    service: str
    rank: int
    state: ServiceState
    detail: str = ""
    cycle: int = 0


@dataclass(frozen=True)
class Tick:
    """Time passed: check deadlines."""


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
    """Start the user's command: every node is ready."""


@dataclass(frozen=True)
class EndDriver:
    """End the driver with SIGTERM, and with SIGKILL after the grace period."""

    grace: float


@dataclass(frozen=True)
class StopNode:
    """End all processes of the run on this node, collect its logs, and have it report `gone`."""

    rank: int


@dataclass(frozen=True)
class BeginCycle:
    """Prepare the leader for the next cycle: the old driver is gone."""


@dataclass(frozen=True)
class Rejoin:
    """Admit a clean node to the new cycle."""

    rank: int


@dataclass(frozen=True)
class Yield:
    """Step down because the leader's own node failed: another node leads and begins the next cycle."""

    reason: str


@dataclass(frozen=True)
class Conclude:
    """End the run with the state machine's `outcome`."""


Command = Union[
    StartHead, StartWorker, StartServices, StartDriver, EndDriver, StopNode, BeginCycle, Rejoin, Yield, Conclude
]


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended. The first recorded reason is kept."""

    state: str  # succeeded | failed | stopped
    exit_code: int
    end_reason: str
    node: str | None = None
    rank: int | None = None
    phase: str | None = None
    lost: bool = False  # the node itself is lost; False: something failed on it
