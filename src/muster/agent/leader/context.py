"""What all components of a leader share: its identity and job, and the ways to act on the run."""

from __future__ import annotations

from dataclasses import dataclass

from muster.agent.control.connections import Connections
from muster.agent.job import Identity, Job
from muster.agent.leader.files import Files
from muster.agent.leader.inbox import Inbox
from muster.agent.leader.leader_address import PEER_WAIT_S, LeaderAddress
from muster.agent.leader.leader_lease import LeaseExecutor
from muster.agent.leader.status_publisher import RunError, StatusPublisher
from muster.lifecycle.state_machine import RunStateMachine


@dataclass(frozen=True)
class LeaderContext:
    """Components read `machine`, which only the leader changes. What happens to them they post to `inbox`."""

    identity: Identity
    job: Job
    machine: RunStateMachine
    connections: Connections
    publisher: StatusPublisher
    files: Files
    inbox: Inbox
    lease: LeaseExecutor
    error: RunError
    address: LeaderAddress

    async def own_address(self) -> str:
        """Return this node's address, if possible one that other nodes have reached."""
        timeout = self.address.peer_timeout() if self.job.nodes > 1 else PEER_WAIT_S
        proven = await self.connections.wait_for_peer(timeout) if self.job.step_nodes > 1 else []
        return self.address.head_address(proven)
