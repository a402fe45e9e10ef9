"""The messages between the coordinator of a torchrun job and its nodes, and their protocol.

A job with failover uses the agents' messages for the lease and the election: Heartbeat, HeartbeatAnswer,
MembershipUpdate and Retirement.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.agent.control.codec import Message, MessageProtocol, MessageRegistry
from muster.agent.control.messages import Heartbeat, HeartbeatAnswer, MembershipUpdate, Retirement
from muster.election.membership import Membership
from muster.lifecycle.events import RunOutcome

# -- from the nodes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinRequest(Message):
    """Introduce the node, which is at the barrier for the first time; part of the handshake."""

    host: str
    node_index: int | None  # None: the coordinator chooses
    process_id: str  # of the coordinator, if it runs in the node's own process; else empty
    min_nodes: int  # of --nnodes
    max_nodes: int
    spares: int
    membership: Membership | None = None  # the last one received, in a job with failover
    exit_code: int | None = None  # of torchrun, if it ended while the node had no coordinator
    reason: str = ""  # of that end


@dataclass(frozen=True)
class BackAtBarrier(Message):
    """Report that the node is at the barrier again."""


@dataclass(frozen=True)
class RoundReady(Message):
    """Report that the node has its rank and has reached the round's store."""

    round: int


@dataclass(frozen=True)
class TorchrunEnded(Message):
    """Report that torchrun has ended on the node."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class LeaveJob(Message):
    """Report that the node leaves; the job may continue."""

    reason: str


# -- from the coordinator -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JoinRefused(Message):
    """Refuse the node."""

    reason: str


@dataclass(frozen=True)
class RoundForms(Message):
    """Give the node its rank in a round that has closed."""

    round: int
    rank: int
    size: int
    port: int  # of its store, at the endpoint's host


@dataclass(frozen=True)
class RoundRuns(Message):
    """Report that all nodes of the round are ready."""

    round: int


@dataclass(frozen=True)
class RoundRecalled(Message):
    """End the workers of the round and return to the barrier."""

    round: int


@dataclass(frozen=True)
class JobOutcome(Message):
    """Report how the job ended; the node closes the connection."""

    outcome: RunOutcome


# -- from both ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeepAlive(Message):
    """Show that the sender is alive."""


_SERVER = (Heartbeat, MembershipUpdate, Retirement)
RENDEZVOUS_PROTOCOL = MessageProtocol(
    name="rendezvous protocol",
    version=3,
    advice="all nodes of a job must use the same version of Muster",
    server=MessageRegistry([KeepAlive, JoinRefused, RoundForms, RoundRuns, RoundRecalled, JobOutcome, *_SERVER]),
    client=MessageRegistry([KeepAlive, BackAtBarrier, RoundReady, TorchrunEnded, LeaveJob, HeartbeatAnswer]),
    greeting=MessageRegistry([JoinRequest]),
    server_name="the coordinator",
)
