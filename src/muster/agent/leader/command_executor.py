"""What the protocol decides, carried out: orders to the nodes, the driver's start and end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from typing import Any

from muster.agent.control.connections import Connections
from muster.agent.job import Identity, Job
from muster.agent.leader.driver_supervisor import DriverSupervisor
from muster.agent.leader.leader_lease import LeaderLease
from muster.agent.leader.status_publisher import StatusPublisher
from muster.agent.log_collection import cycle_ending, ending
from muster.agent.services.leader import LeadServices
from muster.lifecycle import events as m
from muster.lifecycle.state_machine import RunStateMachine


class CommandExecutor:
    """The leader's half that speaks; it listens in lead.py."""

    def __init__(
        self,
        identity: Identity,
        job: Job,
        protocol: RunStateMachine,
        publisher: StatusPublisher,
        members: Connections,
        driving: DriverSupervisor,
        services: LeadServices,
        leader_lease: LeaderLease,
        own_address: Callable[[], Awaitable[str]],
        background: Callable[[Coroutine[Any, Any, None]], None],
        conclude: Callable[[], None],
    ) -> None:
        self._identity, self._job, self._protocol, self._publisher = identity, job, protocol, publisher
        self._members, self._driving, self._services, self._leader_lease = members, driving, services, leader_lease
        self._own_address, self._background, self._conclude = own_address, background, conclude
        self.killed_at: float | None = None  # when Slurm's SIGKILL will come

    def carry_out(self, command: m.Command) -> None:
        if isinstance(command, m.StartHead):
            self._background(self._start_head())
        elif isinstance(command, m.StartWorker):
            head, logical = self._driving.cluster.address, self._protocol.nodes[command.rank].logical
            self._members.send(command.rank, "start_ray", address=None, head=head, logical=logical)
        elif isinstance(command, m.StartServices):
            self._services.begin(command)
        elif isinstance(command, m.StartDriver):
            if self._job.ray:
                self._publisher.mark("ray_ready")
            self._background(self._run_driver(self._protocol.cycle))
        elif isinstance(command, m.EndDriver):
            self._driving.end(command.grace)
        elif isinstance(command, m.StopNode):
            self._stop_node(command.rank)
        elif isinstance(command, m.BeginCycle):
            self._driving.begin_cycle()
        elif isinstance(command, m.Rejoin):
            self.welcome(command.rank)
        elif isinstance(command, m.Yield):
            self._background(self._yield(command.reason))
        else:
            self._conclude()

    def welcome(self, rank: int) -> None:
        """To a cycle: what the node can begin with before it has a rank in it."""
        options, cycle = self._driving.cluster.options(rank), self._protocol.cycle
        told = {"ray": options, "interface": self._job.interface, "services": self._services.expected}
        self._members.send(rank, "welcome", cycle=cycle, leads=rank == self._protocol.leader, **told)

    async def _start_head(self) -> None:
        address = await self._own_address()
        self._members.send(self._protocol.leader, "start_ray", address=address, head=None, logical=0)

    async def _run_driver(self, cycle: int) -> None:
        await self._leader_lease.may_drive(cycle)
        await self._services.publish()
        await self._services.until_served()
        await self._driving.run(cycle)

    def _stop_node(self, rank: int) -> None:
        """With what the node must know to decide about Ray's logs: how the run ended, and how long there is."""
        now, outcome = time.monotonic(), self._protocol.outcome
        ends = [when for when in (self._protocol.deadline, self.killed_at) if when is not None]
        left = min(ends, default=now) - now
        told = ending(rank, outcome, left, self._protocol.leader) if outcome else cycle_ending(rank)
        self._members.send(rank, "stop", **asdict(told), cycle=self._protocol.cycle)

    async def _yield(self, reason: str) -> None:
        """To whoever is next: this node is excluded, and there is no driver that they would have to wait for."""
        self._publisher.phase(f"{self._identity.host} lets another node leader: {reason}")
        self._members.send_all("charter", **self._leader_lease.membership.without_leader().as_record())
        await self._members.release("retire", reason=reason)
        self._conclude()
