"""The messages between the leader and the agents, and their protocol. See codec.py for how they are written.

Increment CONTROL_PROTOCOL's version with every change of a message: all agents of a run come from one archive, and a
peer with another version is rejected in the handshake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.agent.control.codec import Message, MessageProtocol, MessageRegistry
from muster.agent.gang_part import GangPart
from muster.agent.health.section_limits import ProcessSection
from muster.agent.log_collection import LogCollection
from muster.agent.ray.settings import RayOptions
from muster.election.membership import Membership
from muster.lifecycle.control import ControlKind
from muster.lifecycle.services import ServiceState
from muster.lifecycle.topology import NodeLocation

# -- from the leader ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heartbeat(Message):
    """Ask the agent to answer at once with HeartbeatAnswer."""

    at: float  # when it was sent, on the leader's clock
    heard: float | None  # the agent's own time in the last answer that the leader has received


@dataclass(frozen=True)
class MembershipUpdate(Message):
    """Replace the membership that the agent keeps for an election."""

    membership: Membership


@dataclass(frozen=True)
class Welcome(Message):
    """Prepare everything of a cycle that needs no rank: address, ports of services, the import of Ray."""

    cycle: int
    leads: bool  # the agent is on the leader's node
    interface: str | None  # requested by the job
    services: bool  # the job has services
    ray: RayOptions | None  # None in a job without Ray


@dataclass(frozen=True)
class StartRay(Message):
    """Start the node's part of the Ray cluster."""

    rank: int
    address: str | None  # of this node; None: the agent chooses it
    head: str | None  # the head's address; None on the head itself
    replaces: int | None  # node index of a lost node, which is removed from Ray's node table first


@dataclass(frozen=True)
class StartInstances(Message):
    """Start the node's instances of these services."""

    services: tuple[str, ...]
    cycle: int


@dataclass(frozen=True)
class ServiceMembers(Message):
    """Pass a sandbox the endpoints of all sandboxes, or what has changed since the last time."""

    service: str
    version: int
    base: int | None  # the version that is changed; None: the list is complete
    added: tuple[str, ...]
    removed: tuple[str, ...]
    packed: str | None  # many added endpoints, compressed
    cycle: int


@dataclass(frozen=True)
class StartCheck(Message):
    """Run the health check periodically and report changes."""

    text: str | None  # of the job's own check; None if only built-in checks run
    interval: float  # in seconds


@dataclass(frozen=True)
class StopCheck(Message):
    """Stop the periodic health check."""


@dataclass(frozen=True)
class StartProcesses(Message):
    """Start the node's processes of a gang."""

    part: GangPart
    ray: str | None  # the cluster's address
    reason: str | None  # of the restart that began this cycle
    services: Mapping[str, str]  # endpoint variables


@dataclass(frozen=True)
class SignalProcesses(Message):
    """Send the signal to the node's processes of the gang."""

    signal: int


@dataclass(frozen=True)
class EndProcesses(Message):
    """End the node's processes of the gang: TERM now, KILL after the grace."""

    grace: float  # in seconds


@dataclass(frozen=True)
class DumpStacks(Message):
    """Write the stacks of all processes and answer with StacksDumped."""


@dataclass(frozen=True)
class ControlRecorded(Message):
    """Confirm that control requests are recorded: the calls that made them may return."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class StopWork(Message):
    """End everything of the cycle on the node, collect Ray's logs, and answer with WorkStopped."""

    cycle: int
    logs: LogCollection
    check_seconds: float | None  # after a failure: run the built-in checks within this time, and answer with ChecksDone


@dataclass(frozen=True)
class Dismissal(Message):
    """Release the agent: the run, or the agent's attempt, is over."""

    exit_code: int
    end_reason: str | None  # None for an agent of another attempt


@dataclass(frozen=True)
class Refusal(Message):
    """Refuse the agent; it exits with an error."""

    reason: str


@dataclass(frozen=True)
class Retirement(Message):
    """Release the agent to another leader: the sender holds no lease any more."""

    reason: str | None  # None from a candidate that was not elected


# -- from the agents ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Greeting(Message):
    """Introduce the agent; part of the handshake."""

    node_index: int
    host: str
    attempt: int
    location: NodeLocation
    membership: Membership | None  # the last one received
    checking: bool  # ChecksDone follows: the node has not arrived before


@dataclass(frozen=True)
class HeartbeatAnswer(Message):
    """Answer a Heartbeat, or confirm a MembershipUpdate."""

    at: float | None  # the time in the leader's heartbeat; None after a MembershipUpdate
    version: int  # of the agent's membership; -1 without one
    time: float  # on the agent's clock


@dataclass(frozen=True)
class HeadAddress(Message):
    """Report the address of the Ray head that runs on this node."""

    address: str
    dashboard: int | None  # its port
    cycle: int


@dataclass(frozen=True)
class RayAlive(Message):
    """Report the nodes that are alive in the Ray cluster; sent by the head."""

    node_indexes: tuple[int, ...]
    cycle: int


@dataclass(frozen=True)
class RayStarted(Message):
    """Report that Ray runs on this node."""

    cycle: int


@dataclass(frozen=True)
class GcsRestarted(Message):
    """Report that Ray's control service (GCS) had ended on this node, was restarted, and answers."""

    restarts: int  # in this cycle
    reason: str  # how it ended
    seconds: float  # from its end to the answer
    cycle: int


@dataclass(frozen=True)
class Note(Message):
    """Report something that people should read in the run's progress."""

    text: str


@dataclass(frozen=True)
class UnendedProcess(Message):
    """Report a process that could not be ended."""

    text: str


@dataclass(frozen=True)
class NodeFailure(Message):
    """Report that the node cannot do its part."""

    phase: str
    reason: str
    tail: tuple[str, ...]  # the last lines of the node's log
    cycle: int


@dataclass(frozen=True)
class HealthReport(Message):
    """Report the result of the periodic health check."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class ChecksDone(Message):
    """Report the results of the built-in checks before the job, or after a failure."""

    failure: str | None  # what has failed
    measured: Mapping[str, float]  # values by which nodes are compared, by check


@dataclass(frozen=True)
class SignalReceived(Message):
    """Report a signal of Slurm to the agent."""

    signal: int


@dataclass(frozen=True)
class StacksDumped(Message):
    """Answer DumpStacks."""

    python: bool  # stacks of Python programs were written


@dataclass(frozen=True)
class WorkStopped(Message):
    """Report that no process of the cycle is left on the node."""

    cycle: int


@dataclass(frozen=True)
class GangBeat(Message):
    """Report that a process of the gang has called muster.beat()."""

    step: int | None
    cycle: int


@dataclass(frozen=True)
class SectionReport(Message):
    """Report what the processes on this node do."""

    processes: tuple[ProcessSection, ...]
    overdue: bool  # a process is in a section for too long, which was not reported before
    cycle: int


@dataclass(frozen=True)
class ControlRequest(Message):
    """Pass on what a program on this node requests of the run."""

    id: str  # new on this node and in this cycle
    kind: ControlKind
    reason: str
    at_once: bool  # of the exclusion of a node: do not wait for the next restart
    rank: int | None  # of the process, in a gang
    cycle: int


@dataclass(frozen=True)
class RankFailed(Message):
    """Report the node's first failed process of the gang, or one that hangs."""

    rank: int  # of the process
    exit_code: int
    how: str
    silent: float | None  # of a hung process: seconds since its last output or beat
    cycle: int


@dataclass(frozen=True)
class HungRankEnded(Message):
    """Report that a process of the gang that was reported as hung has ended with exit code 0."""

    rank: int  # of the process
    cycle: int


@dataclass(frozen=True)
class ProcessesEnded(Message):
    """Report that all processes of the gang on this node have ended."""

    cycle: int


@dataclass(frozen=True)
class ServiceStatus(Message):
    """Report a change of a service instance's state."""

    service: str
    state: ServiceState
    detail: str  # why it is not ready, or how it ended
    url: str | None
    peer_url: str | None  # of a sandbox: for the other nodes
    restarts: int
    cycle: int


@dataclass(frozen=True)
class ServiceLoad(Message):
    """Report the load of a sandbox."""

    service: str
    load: Mapping[str, Any]
    cycle: int


@dataclass(frozen=True)
class ServiceServes(Message):
    """Report that a sandbox's endpoint serves this version of its members; version 0 asks for the complete list."""

    service: str
    version: int
    cycle: int


CONTROL_PROTOCOL = MessageProtocol(
    name="control protocol",
    version=5,
    advice="all agents of a run must come from the same agent.pyz",
    server=MessageRegistry(
        [
            Heartbeat,
            MembershipUpdate,
            Welcome,
            StartRay,
            StartInstances,
            ServiceMembers,
            StartCheck,
            StopCheck,
            StartProcesses,
            SignalProcesses,
            EndProcesses,
            DumpStacks,
            ControlRecorded,
            StopWork,
            Dismissal,
            Refusal,
            Retirement,
        ]
    ),
    client=MessageRegistry(
        [
            HeartbeatAnswer,
            HeadAddress,
            RayAlive,
            RayStarted,
            GcsRestarted,
            Note,
            UnendedProcess,
            NodeFailure,
            HealthReport,
            ChecksDone,
            SignalReceived,
            StacksDumped,
            WorkStopped,
            GangBeat,
            ControlRequest,
            SectionReport,
            RankFailed,
            HungRankEnded,
            ProcessesEnded,
            ServiceStatus,
            ServiceLoad,
            ServiceServes,
        ]
    ),
    greeting=MessageRegistry([Greeting]),
)
