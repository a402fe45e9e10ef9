"""Events that go into the state machine and commands that come out of it. Plain data.

`node_index` is the node's number in the allocation. Events about a cycle carry its number and are ignored in others.
Commands carry everything that their execution needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from muster.lifecycle.services import ServiceState
from muster.lifecycle.topology import UNKNOWN_LOCATION, NodeLocation


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended. The first recorded reason is kept."""

    state: str  # succeeded | failed | stopped
    exit_code: int
    end_reason: str
    node: str | None = None
    node_index: int | None = None
    phase: str | None = None
    lost: bool = False  # the node itself is lost; False: something failed on it


@dataclass(frozen=True)
class Arrived:
    """The agent of a node joined."""

    node_index: int
    host: str
    location: NodeLocation = UNKNOWN_LOCATION


@dataclass(frozen=True)
class HeadUp:
    """The Ray head is alive: workers can join it."""

    cycle: int = 0


@dataclass(frozen=True)
class NodeReady:
    """Ray on this node has joined the cluster."""

    node_index: int
    cycle: int = 0


@dataclass(frozen=True)
class NodeFailed:
    """A node, or the launcher on its behalf, reported a failure."""

    node_index: int
    phase: str
    reason: str
    cycle: int = 0


@dataclass(frozen=True)
class NodeLost:
    """The connection to a node ended, or its heartbeat timed out."""

    node_index: int
    reason: str
    isolated: bool = False  # the leader has lost contact with all other nodes: rather its own node is to blame


@dataclass(frozen=True)
class DriverEnded:
    """The driver ended; `code` is the shell's exit code, `how` describes the end in text."""

    code: int
    how: str
    cycle: int = 0
    completed: bool = False  # it ended by itself, before it was asked to end


@dataclass(frozen=True)
class DriverStalled:
    """The driver is alive but exceeded the time limit without progress, or a process of the run hangs."""

    reason: str
    cycle: int = 0
    restart: bool | None = None  # begin a new cycle, or end the run; None: as after a failure of the driver


@dataclass(frozen=True)
class StopRequested:
    """A user, or Slurm with a signal, requested the end of the run."""

    reason: str
    signal: int
    grace: float  # seconds that the driver has to exit


@dataclass(frozen=True)
class NodeGone:
    """A node verified that no process of the run is left on it: it is clean for this cycle."""

    node_index: int
    cycle: int = 0


@dataclass(frozen=True)
class Health:
    """A waiting node ran its health check."""

    node_index: int
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
    node_index: int
    state: ServiceState
    detail: str = ""
    cycle: int = 0


@dataclass(frozen=True)
class ExclusionRequested:
    """A program on this node requested that the run does not use the node again."""

    node_index: int
    reason: str
    at_once: bool = True  # False: the node works until the next restart


@dataclass(frozen=True)
class RestartForbidden:
    """A program requested that a failure ends the run: no further cycle of this attempt."""

    reason: str
    cycle: int = 0


@dataclass(frozen=True)
class RestartRequested:
    """A program requested a new cycle."""

    reason: str
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
    ExclusionRequested,
    RestartForbidden,
    RestartRequested,
    Tick,
]


@dataclass(frozen=True)
class StartHead:
    """Start the Ray head on the leader's node."""

    node_index: int
    cycle: int


@dataclass(frozen=True)
class StartWorker:
    """Start a Ray worker on this node, which has this rank in the cycle."""

    node_index: int
    rank: int
    cycle: int
    replaces: int | None = None  # node index of the lost node that had the rank, which Ray may still list as alive


@dataclass(frozen=True)
class StartServices:
    """Start these services on this node."""

    node_index: int
    services: tuple[str, ...]
    cycle: int


@dataclass(frozen=True)
class StartDriver:
    """Start the user's command: every node is ready."""

    cycle: int


@dataclass(frozen=True)
class EndDriver:
    """End the driver with SIGTERM, and with SIGKILL after the grace period in seconds."""

    grace: float
    cycle: int


@dataclass(frozen=True)
class StopNode:
    """End all processes of the run on this node, collect its logs, and have it report `gone` for this cycle."""

    node_index: int
    cycle: int
    outcome: RunOutcome | None  # of the run; None while the run continues without this node, or in another cycle
    deadline: float | None  # when the run ends without the node's report, if it ends


@dataclass(frozen=True)
class BeginCycle:
    """Prepare the leader for this cycle: the driver of the previous one is gone."""

    cycle: int
    reason: str  # why it follows the previous one


@dataclass(frozen=True)
class Rejoin:
    """Admit a clean node to this cycle."""

    node_index: int
    cycle: int


@dataclass(frozen=True)
class Yield:
    """Step down because the leader's own node failed before the driver ran: another node leads the next cycle.

    Where no other node could lead after a loss of this one, there is no election, and `successor` leads.
    """

    reason: str
    successor: int  # node index


@dataclass(frozen=True)
class Conclude:
    """End the run with this outcome: every node is clean, or the deadline has passed."""

    outcome: RunOutcome


Command = Union[
    StartHead, StartWorker, StartServices, StartDriver, EndDriver, StopNode, BeginCycle, Rejoin, Yield, Conclude
]
