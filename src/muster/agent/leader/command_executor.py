"""Executes the state machine's commands: messages to the nodes, the start and the end of the driver."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from typing import Any

from muster.agent.control.connections import Connections
from muster.agent.job import Identity, Job
from muster.agent.leader.driver_supervisor import DriverSupervisor
from muster.agent.leader.leader_lease import LeaderLease
from muster.agent.leader.services import LeaderServices
from muster.agent.leader.status_publisher import StatusPublisher
from muster.agent.log_collection import cycle_ending, run_ending
from muster.lifecycle import events as m
from muster.lifecycle.state_machine import RunStateMachine


class CommandExecutor:
    """The leader's outgoing half; `leader.py` handles what comes in."""

    def __init__(
        self,
        identity: Identity,
        job: Job,
        machine: RunStateMachine,
        publisher: StatusPublisher,
        connections: Connections,
        driver_supervisor: DriverSupervisor,
        services: LeaderServices,
        leader_lease: LeaderLease,
        own_address: Callable[[], Awaitable[str]],
        background: Callable[[Coroutine[Any, Any, None]], None],
        conclude: Callable[[], None],
    ) -> None:
        self._identity, self._job, self._machine, self._publisher = identity, job, machine, publisher
        self._connections, self._driver_supervisor = connections, driver_supervisor
        self._services, self._leader_lease = services, leader_lease
        self._own_address, self._background, self._conclude = own_address, background, conclude
        self.killed_at: float | None = None  # when Slurm sends SIGKILL

    def execute(self, command: m.Command) -> None:
        if isinstance(command, m.StartHead):
            self._background(self._start_head())
        elif isinstance(command, m.StartWorker):
            head, logical = self._driver_supervisor.cluster.address, self._machine.nodes[command.rank].logical
            self._connections.send(command.rank, "start_ray", address=None, head=head, logical=logical)
        elif isinstance(command, m.StartServices):
            self._services.start(command)
        elif isinstance(command, m.StartDriver):
            if self._job.ray:
                self._publisher.mark("ray_ready")
            self._background(self._run_driver(self._machine.cycle))
        elif isinstance(command, m.EndDriver):
            self._driver_supervisor.end(command.grace)
        elif isinstance(command, m.StopNode):
            self._stop_node(command.rank)
        elif isinstance(command, m.BeginCycle):
            self._driver_supervisor.begin_cycle()
        elif isinstance(command, m.Rejoin):
            self.welcome(command.rank)
        elif isinstance(command, m.Yield):
            self._background(self._yield(command.reason))
        else:
            self._conclude()

    def welcome(self, rank: int) -> None:
        """Send what the node can prepare for a cycle before it has a rank in it."""
        options, cycle = self._driver_supervisor.cluster.options(rank), self._machine.cycle
        fields = {"ray": options, "interface": self._job.interface, "services": self._services.expected}
        self._connections.send(rank, "welcome", cycle=cycle, leads=rank == self._machine.leader, **fields)

    async def _start_head(self) -> None:
        address = await self._own_address()
        self._connections.send(self._machine.leader, "start_ray", address=address, head=None, logical=0)

    async def _run_driver(self, cycle: int) -> None:
        await self._leader_lease.wait_for_quorum(cycle)
        await self._services.publish()
        await self._services.wait_until_served()
        await self._driver_supervisor.run(cycle)

    def _stop_node(self, rank: int) -> None:
        """Stop the node, with the instructions for Ray's logs."""
        now, outcome = time.monotonic(), self._machine.outcome
        ends = [when for when in (self._machine.deadline, self.killed_at) if when is not None]
        left = min(ends, default=now) - now
        logs = run_ending(rank, outcome, left, self._machine.leader) if outcome else cycle_ending(rank)
        self._connections.send(rank, "stop", **asdict(logs), cycle=self._machine.cycle)

    async def _yield(self, reason: str) -> None:
        """Hand over to another node: exclude this one from the membership. No driver runs that would need a fence."""
        self._publisher.phase(f"{self._identity.host} hands over to another node: {reason}")
        self._connections.send_all("charter", **self._leader_lease.membership.without_leader().as_record())
        await self._connections.release("retire", reason=reason)
        self._conclude()
