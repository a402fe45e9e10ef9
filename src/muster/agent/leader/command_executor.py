"""Executes the state machine's commands: messages to the nodes, the start and the end of the driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from muster.agent.control.messages import StartRay, StopWork, Welcome
from muster.agent.leader.context import LeaderContext
from muster.agent.leader.driver_supervisor import DriverSupervisor
from muster.agent.leader.services import LeaderServices
from muster.agent.log_collection import cycle_ending, run_ending
from muster.lifecycle import events as m


class CommandExecutor:
    """The leader's outgoing half. Commands are complete: the order in which those of a transition are executed is free.

    The leader itself executes Conclude and Yield, which end its term.
    """

    def __init__(self, context: LeaderContext, driver_supervisor: DriverSupervisor, services: LeaderServices) -> None:
        self._context, self._driver_supervisor, self._services = context, driver_supervisor, services
        self._connections = context.connections
        self.killed_at: float | None = None  # when Slurm sends SIGKILL
        self._methods: dict[type[m.Command], Callable[[Any], None]] = {
            m.StartHead: self._start_head,
            m.StartWorker: self._start_worker,
            m.StartServices: services.start,
            m.StartDriver: self._start_driver,
            m.EndDriver: self._end_driver,
            m.StopNode: self._stop_node,
            m.BeginCycle: driver_supervisor.begin_cycle,
            m.Rejoin: self._rejoin,
        }

    def execute(self, command: m.Command) -> None:
        self._methods[type(command)](command)

    def welcome(self, node_index: int, cycle: int) -> None:
        """Send what the node can prepare for a cycle before it has a rank in it."""
        context, cluster = self._context, self._driver_supervisor.cluster
        options, leads = cluster.options(node_index), node_index == context.machine.leader
        message = Welcome(cycle, leads, context.job.interface, self._services.expected, options)
        self._connections.send(node_index, message)

    # -- one method per command ---------------------------------------------------------------------------------

    def _start_head(self, command: m.StartHead) -> None:
        self._context.inbox.spawn(self._send_start_of_head(command))

    async def _send_start_of_head(self, command: m.StartHead) -> None:
        address = await self._context.own_address()
        self._connections.send(command.node_index, StartRay(0, address, None))

    def _start_worker(self, command: m.StartWorker) -> None:
        head = self._driver_supervisor.cluster.address
        self._connections.send(command.node_index, StartRay(command.rank, None, head))

    def _start_driver(self, command: m.StartDriver) -> None:
        if self._context.job.ray:
            self._context.publisher.mark("ray_ready")
        self._context.inbox.spawn(self._run_driver(command.cycle))

    async def _run_driver(self, cycle: int) -> None:
        await self._context.lease.wait_for_quorum(cycle)
        await self._services.publish()
        await self._services.wait_until_served()
        await self._driver_supervisor.run(cycle)

    def _end_driver(self, command: m.EndDriver) -> None:
        self._driver_supervisor.end(command.grace)

    def _stop_node(self, command: m.StopNode) -> None:
        """Stop the node, with the instructions for Ray's logs."""
        now, node_index, outcome = time.monotonic(), command.node_index, command.outcome
        ends = [when for when in (command.deadline, self.killed_at) if when is not None]
        left, leader = min(ends, default=now) - now, self._context.machine.leader
        logs = run_ending(node_index, outcome, left, leader) if outcome else cycle_ending(node_index)
        self._connections.send(node_index, StopWork(command.cycle, logs))

    def _rejoin(self, command: m.Rejoin) -> None:
        self.welcome(command.node_index, command.cycle)
