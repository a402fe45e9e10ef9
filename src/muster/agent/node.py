"""The agent's work for its own node: handle the leader's messages, report to it, clean up."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from enum import Enum
from typing import Any

from muster.agent.control.channel import Channel
from muster.agent.environment import given_variables, job_environment
from muster.agent.gang.gang_node import GangNode, GangStartRequest
from muster.agent.health import stacks
from muster.agent.health.health_check import HealthCheck
from muster.agent.job import Identity
from muster.agent.log_collection import LogCollection, leaderless_ending
from muster.agent.net.addresses import NoAddress, own_address
from muster.agent.ray import RayNode, RayPaths, RayStartRequest, settings
from muster.agent.ray.labels import NodeFacts
from muster.agent.ray.resources import ResourceMismatch
from muster.agent.ray.settings import RayOptions
from muster.agent.services.node import NodeServices
from muster.agent.topology_probe import SLURM_VARIABLE
from muster.election.membership import Membership
from muster.election.timing import LEASE_S
from muster.exit_codes import BY_SIGNAL
from muster.lifecycle.topology import UNKNOWN_LOCATION
from muster.process import SpawnError
from muster.process.lease import ProcessLease
from muster.rundir.hosts import host_file_name
from muster.rundir.log_tail import node_tail
from muster.rundir.node_groups import GROUP_VARIABLE

logger = logging.getLogger(__name__)


class FollowResult(Enum):
    """How following a leader ended. Values are the types of the messages that end it."""

    DISMISSED = "bye"  # the run is over
    REFUSED = "refused"
    RELEASED = "retire"  # by a leader or candidate that holds no lease any more
    LOST = "lost"  # without a message


class NodeAgent:
    """The node's half of the control channel, under one leader after another."""

    def __init__(self, identity: Identity, token: bytes, lease: ProcessLease) -> None:
        self._identity, self._token, self._lease = identity, token, lease
        self._ray: RayNode | None = None
        self._procs: GangNode | None = None  # this node's part of a gang
        self._services: NodeServices | None = None
        self._cycle = 0
        self._channel: Channel | None = None
        self._check = HealthCheck(self._report_health)
        self._address: str  # at which other nodes reach this one
        self.membership: Membership | None = None  # the last one received; None in a run without failover
        self.leads = False  # the leader is in this process, and renews the lease itself
        self.stopped = False  # the leader has stopped this node, and no process is left
        self.last_answer = 0.0  # when this agent last sent a heartbeat to a leader
        self.loss_reason = ""  # how the last leader was lost
        self.code = 0  # the job's exit code, once known
        self.location = UNKNOWN_LOCATION

    async def follow(self, channel: Channel) -> FollowResult:
        """Handle this leader's messages until it releases this agent or is lost."""
        self._channel, self.last_answer = channel, time.monotonic()
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        reading = asyncio.create_task(self._read_loop(channel, messages))
        try:
            while (message := await messages.get())["type"] not in [result.value for result in FollowResult]:
                await self._handle(message, channel)
        finally:
            reading.cancel()
            self._channel = None
        self.code, reason = message.get("code", 0), message.get("reason")
        lost = "fell silent" if channel.timed_out else "is gone: its connection ended"
        self.loss_reason = lost if reason is None else f"has stepped down: {reason}"
        if message["type"] == FollowResult.REFUSED.value:
            logger.error("the leader refused this agent: %s", reason)
        elif "ended" in message:
            logger.info("the run has ended with %d: %s", self.code, message["ended"])
        return FollowResult(message["type"])

    async def _read_loop(self, channel: Channel, messages: asyncio.Queue[dict[str, Any]]) -> None:
        """Answer heartbeats at once, however long the other messages take; queue those."""
        while (message := await channel.receive()) is not None:
            if message["type"] == "beat":
                self._renew(message["heard"])
                self._answer(channel, message["at"])
            elif message["type"] == "charter":
                self.membership = Membership.from_record(message)
                self._answer(channel, None)
            else:
                messages.put_nowait(message)
        messages.put_nowait({"type": FollowResult.LOST.value})

    def _answer(self, channel: Channel, at: float | None) -> None:
        """Send a heartbeat. `at`: the time in the leader's heartbeat; None to send only the membership version."""
        self.last_answer = time.monotonic()
        channel.send("beat", at=at, version=self.membership.version if self.membership else -1, time=self.last_answer)

    def _renew(self, heard: float | None) -> None:
        """Renew the lease: the leader received the heartbeat of time `heard` and counts this node alive for a lease."""
        if self.membership is not None and heard is not None and not self.leads:
            self._lease.renew(max(0.0, heard + LEASE_S - time.monotonic()))

    def report_signal(self, signum: int) -> None:
        """Report the signal to the leader. Slurm signals all tasks at once; the driver needs its cluster to stop."""
        if self._channel is not None:
            self._channel.send("signal", signal=signum)
        else:
            os._exit(BY_SIGNAL + signum)

    async def _handle(self, message: dict[str, Any], channel: Channel) -> None:
        kind = message["type"]
        if kind == "welcome":  # for each cycle, once the node is clean
            self._cycle, self.stopped = message["cycle"], False
            if self._has_address(message["interface"], channel):
                if message["services"]:
                    await self._prepare_services(channel, message["leads"])
                if message["ray"] is not None:
                    await self._prepare_ray(RayOptions(**message["ray"]), channel, message["leads"])
        elif kind == "start_services" and self._services is not None:
            self._services.start(message["names"])
        elif kind == "service_members" and self._services is not None:
            await self._services.set_members(message["service"], message["version"], message["endpoints"])
        elif kind == "start_ray" and self._ray is not None:
            self._ray.start(RayStartRequest(message["address"] or self._address, message["head"], message["logical"]))
        elif kind == "check" and message["text"] is not None:
            self._check.start(message["text"], message["interval"])
        elif kind == "check":
            self._check.stop()
        elif kind == "start_procs":
            self._procs = GangNode(self._identity, GangStartRequest.from_message(message), channel.send)
        elif kind in ("signal_procs", "end_procs") and self._procs is not None:
            self._procs.handle(message)
        elif kind == "stacks":
            self._dumping = asyncio.create_task(self._dump_stacks())
        elif kind == "stop":
            await self.clean(LogCollection(message["failed"], message["after"], message["seconds"]))
            self.stopped = True
            channel.send("gone", cycle=message["cycle"])

    def _has_address(self, interface: str | None, channel: Channel) -> bool:
        """Choose this node's address; report a failure if the requested interface has none."""
        proven = channel.local_address
        try:
            self._address = proven if self._identity.local else own_address(interface, proven)
        except (NoAddress, OSError) as error:
            self._report_failure("network", str(error))
            return False
        return True

    async def _prepare_services(self, channel: Channel, leads: bool) -> None:
        """Acquire the ports of the services; before Ray, whose environment names them."""
        if self._services is not None:
            await self._services.close()
        self._services = NodeServices(self._identity, self._cycle, self._address, self._token, channel.send)
        try:
            await self._services.prepare(leads)
        except (OSError, ValueError) as error:
            self._report_failure("service", f"the job's services could not be read: {error}")

    async def _prepare_ray(self, options: RayOptions, channel: Channel, leads: bool) -> None:
        """Start to import Ray: this takes most of its start time and needs no other node."""
        identity, cycle = self._identity, self._cycle
        try:
            temp = settings.temp_dir(identity.run.run_id, identity.attempt.number, cycle, identity.rank)
            env = job_environment(os.environ, given_variables(identity), identity, cycle)
            env.update(self._services.environment() if self._services is not None else {})
            if options.group is not None:
                env[GROUP_VARIABLE] = options.group
            logs = identity.attempt.ray_logs_dir(cycle)
            paths = RayPaths(temp, os.path.join(logs, host_file_name(identity.host)))
            rank = 0 if leads else max(identity.rank, 1)  # provisional: start_ray has the rank of the cycle
            topology, domain = self.location.topology or os.environ.get(SLURM_VARIABLE, ""), self.location.domain
            facts = NodeFacts(
                rank, identity.host, topology, group=options.group, node_index=identity.rank, domain=domain
            )
            self._ray = RayNode(options, facts, paths, env, self._token)
            self._ray.on_head = lambda address, port: channel.send(
                "head_address", address=address, dashboard=port, cycle=cycle
            )
            self._ray.on_alive = lambda ranks: channel.send("alive", ranks=ranks, cycle=cycle)
            self._ray.on_started = lambda: channel.send("started", cycle=cycle)
            self._ray.on_note = lambda text: channel.send("note", text=text)
            self._ray.on_failure = lambda reason: self._report_failure("ray", reason)
            await self._ray.warm()
        except ResourceMismatch as error:
            self._report_failure("resources", f"{identity.host}: {error}")
        except (OSError, ValueError, SpawnError) as error:
            self._report_failure("ray", str(error))

    async def _dump_stacks(self) -> None:
        """Write the stacks of all processes. Runs as a task: a stop message may arrive meanwhile."""
        identity = self._identity
        env = job_environment(os.environ, given_variables(identity), identity, self._cycle)
        try:
            dumped = await asyncio.to_thread(stacks.dump_stacks, identity.attempt.stacks(identity.rank), env)
        except OSError as error:
            logger.warning("stacks could not be written: %s", error)
            dumped = False
        if self._channel is not None:
            self._channel.send("stacks", python=dumped)

    def _report_health(self, ok: bool, reason: str) -> None:
        if self._channel is not None:
            self._channel.send("health", ok=ok, reason=reason)

    def _report_failure(self, phase: str, reason: str) -> None:
        logger.error("%s", reason)
        tail = node_tail(self._identity.attempt, self._identity.rank)
        if self._channel is not None:
            self._channel.send("failed", phase=phase, reason=reason, tail=tail, cycle=self._cycle)

    async def clean(self, ending: LogCollection | None = None) -> None:
        """End and remove everything of the run on this node. Idempotent."""
        await self._check.close()
        if self._procs is not None:
            procs, self._procs = self._procs, None
            await procs.close()
        if self._services is not None:
            services, self._services = self._services, None
            began = time.monotonic()
            await services.close()
            ending = ending and ending.minus(time.monotonic() - began)
        if self._ray is not None:
            ray, self._ray = self._ray, None
            await ray.stop(ending or leaderless_ending(self._identity.rank))
