"""The agent's work for its own node: handle the leader's messages, report to it, clean up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Any

from muster.agent.check_process import CheckProcess
from muster.agent.control.channel import Channel
from muster.agent.control.codec import Message
from muster.agent.control.messages import (
    ControlRecorded,
    Dismissal,
    DumpStacks,
    EndProcesses,
    GcsRestarted,
    HeadAddress,
    HealthReport,
    Heartbeat,
    HeartbeatAnswer,
    MembershipUpdate,
    NodeFailure,
    Note,
    RayAlive,
    RayStarted,
    Refusal,
    Retirement,
    ServiceMembers,
    SignalProcesses,
    SignalReceived,
    StacksDumped,
    StartCheck,
    StartInstances,
    StartProcesses,
    StartRay,
    StopCheck,
    StopWork,
    Welcome,
    WorkStopped,
)
from muster.agent.environment import control_directory, node_environment
from muster.agent.event_loop import running_now
from muster.agent.gang.gang_node import GangNode
from muster.agent.health import stacks
from muster.agent.health.health_check import HealthCheck
from muster.agent.job import Identity
from muster.agent.log_collection import LogCollection, leaderless_ending
from muster.agent.net.addresses import NoAddress, own_address
from muster.agent.node_checks import NodeChecks
from muster.agent.private_dir import avoid_occupied
from muster.agent.ray import settings
from muster.agent.ray.gcs_recovery import GcsRecovered
from muster.agent.ray.labels import NodeFacts
from muster.agent.ray.node import (
    HeadAddressKnown,
    NodesAlive,
    RayEvent,
    RayFailed,
    RayNode,
    RayRunning,
    RaySetup,
    RayStartRequest,
)
from muster.agent.ray.resources import ResourceMismatch
from muster.agent.ray.settings import RayOptions
from muster.agent.request_mailbox import RequestMailbox
from muster.agent.run_directory import RunDirectoryError, retried
from muster.agent.section_watch import SectionWatch
from muster.agent.services.node import NodeServices
from muster.election.handover import RosterHistory
from muster.election.membership import Membership
from muster.election.timing import LEASE_S
from muster.exit_codes import BY_SIGNAL
from muster.lifecycle.topology import UNKNOWN_LOCATION
from muster.process import SpawnError
from muster.process.lease import ProcessLease
from muster.process.log_reader import tail_lines
from muster.rundir.hosts import host_file_name
from muster.rundir.node_groups import GROUP_VARIABLE

logger = logging.getLogger(__name__)

TAIL_TIMEOUT_S = 0.5  # for the last lines of the log in the report of a failure


class FollowResult(Enum):
    """How following a leader ended."""

    DISMISSED = "dismissed"  # the run is over
    REFUSED = "refused"
    RELEASED = "released"  # by a leader or candidate that holds no lease any more
    LOST = "lost"  # without a message


_LAST_MESSAGES: dict[type[Message], FollowResult] = {
    Dismissal: FollowResult.DISMISSED,
    Refusal: FollowResult.REFUSED,
    Retirement: FollowResult.RELEASED,
}


class NodeAgent:
    """The node's half of the control channel, under one leader after another."""

    def __init__(
        self, identity: Identity, token: bytes, lease: ProcessLease, checks: CheckProcess | None = None
    ) -> None:
        """`checks`: None if no built-in check can be run."""
        self._identity, self._token, self._lease = identity, token, lease
        self.checks = NodeChecks(identity, checks or CheckProcess(None))
        self._ray: RayNode | None = None
        self._procs: GangNode | None = None  # this node's part of a gang
        self._services: NodeServices | None = None
        self._requests: RequestMailbox | None = None  # of the job's programs on this node
        self._sections: SectionWatch | None = None  # of these programs
        self._cycle = 0
        self._channel: Channel | None = None
        self._check = HealthCheck(self._report_health, self._run_built_in_checks)
        self._reporting: set[asyncio.Future[None]] = set()  # failures whose log is being read
        self._address: str  # at which other nodes reach this one
        self.membership: Membership | None = None  # the last one received; None in a run without failover
        self.history = RosterHistory()
        self.holds_lease = False  # in every run that may restart; else only once it has a membership
        self.leads = False  # the leader is in this process, and renews the lease itself
        self.stopped = False  # the leader has stopped this node, and no process is left
        self.last_answer = 0.0  # when this agent last sent a heartbeat to a leader
        self.answered_at = 0.0  # the same, by the clock of the loop: a fence does not pass while this node is suspended
        self.heard = 0.0  # when this agent sent the last message that the leader is known to have received
        self.loss_reason = ""  # how the last leader was lost
        self.code = 0  # the job's exit code, once known
        self.location = UNKNOWN_LOCATION
        self._handlers: dict[type[Message], Callable[[Any, Channel], Awaitable[None]]] = {
            Welcome: self._on_welcome,
            StartInstances: self._on_start_instances,
            ServiceMembers: self._on_service_members,
            StartRay: self._on_start_ray,
            StartCheck: self._on_start_check,
            StopCheck: self._on_stop_check,
            StartProcesses: self._on_start_processes,
            SignalProcesses: self._on_signal_processes,
            EndProcesses: self._on_end_processes,
            DumpStacks: self._on_dump_stacks,
            ControlRecorded: self._on_control_recorded,
            StopWork: self._on_stop_work,
        }

    async def follow(self, channel: Channel) -> FollowResult:
        """Handle this leader's messages until it releases this agent or is lost."""
        self._channel = channel
        self.last_answer = self.heard = time.monotonic()  # the end of the handshake, from which on the leader counts
        self.answered_at = running_now()
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        reading = asyncio.create_task(self._read_loop(channel, messages))
        checking = asyncio.create_task(self._report_first_checks(channel))
        try:
            while (message := await messages.get()) is not None and type(message) not in _LAST_MESSAGES:
                await self._handlers[type(message)](message, channel)
        finally:
            reading.cancel()
            checking.cancel()
            self._channel = None
        self.loss_reason = "fell silent" if channel.timed_out else channel.loss_reason
        if isinstance(message, Retirement) and message.reason is not None:
            self.loss_reason = f"has stepped down: {message.reason}"
        elif isinstance(message, Refusal):
            logger.error("the leader refused this agent: %s", message.reason)
        elif isinstance(message, Dismissal):
            self.code = message.exit_code
            if message.end_reason is not None:
                logger.info("the run has ended with %d: %s", self.code, message.end_reason)
        return FollowResult.LOST if message is None else _LAST_MESSAGES[type(message)]

    async def _read_loop(self, channel: Channel, messages: asyncio.Queue[Message | None]) -> None:
        """Answer heartbeats at once, however long the other messages take; queue those."""
        while (message := await channel.receive()) is not None:
            if isinstance(message, Heartbeat):
                self.heard = self.heard if message.heard is None else message.heard
                self._renew()
                self._answer(channel, message.at)
            elif isinstance(message, MembershipUpdate):
                self.membership = message.membership
                self.history.received(message.membership, running_now())
                self._renew()  # the first heartbeat may come after the first processes
                self._answer(channel, None)
            else:
                if isinstance(message, Welcome):
                    self._renew()  # without failover no membership comes before the first processes
                messages.put_nowait(message)
        messages.put_nowait(None)

    def _answer(self, channel: Channel, at: float | None) -> None:
        """Send a heartbeat. `at`: the time in the leader's heartbeat; None to send only the membership version."""
        self.last_answer, self.answered_at = time.monotonic(), running_now()
        version = self.membership.version if self.membership else -1
        channel.send(HeartbeatAnswer(at, version, self.last_answer))

    def _renew(self) -> None:
        """Renew the lease: the leader received the message of time `heard` and counts this node alive for a lease."""
        if (self.holds_lease or self.membership is not None) and not self.leads:
            self._lease.renew(max(0.0, self.heard + LEASE_S - time.monotonic()))

    def report_signal(self, signum: int) -> None:
        """Report the signal to the leader. Slurm signals all tasks at once; the driver needs its cluster to stop."""
        if self._channel is not None:
            self._channel.send(SignalReceived(signum))
        else:
            os._exit(BY_SIGNAL + signum)

    # -- messages of the leader -----------------------------------------------------------------------------------

    async def _on_welcome(self, message: Welcome, channel: Channel) -> None:
        """Prepare for a cycle. The leader sends this for each cycle, once the node is clean."""
        self._cycle, self.stopped = message.cycle, False
        await self._close_requests()
        directory = control_directory(self._identity, message.cycle)
        self._requests = RequestMailbox(directory, message.cycle, channel.send)
        self._sections = SectionWatch(self._identity, directory, message.cycle, channel.send)
        if self._has_address(message.interface, channel):
            if message.services:
                await self._prepare_services(channel, message.leads)
            if message.ray is not None:
                await self._prepare_ray(message.ray, channel, message.leads)

    async def _on_start_instances(self, message: StartInstances, channel: Channel) -> None:
        if self._services is not None:
            self._services.start(message.services)

    async def _on_service_members(self, message: ServiceMembers, channel: Channel) -> None:
        if self._services is not None:
            await self._services.set_members(message)

    async def _on_start_ray(self, message: StartRay, channel: Channel) -> None:
        if self._ray is not None:
            address = message.address or self._address
            self._ray.start(RayStartRequest(address, message.head, message.rank, message.replaces))

    async def _on_start_check(self, message: StartCheck, channel: Channel) -> None:
        self._check.start(message.text, message.interval)

    async def _on_stop_check(self, message: StopCheck, channel: Channel) -> None:
        self._check.stop()

    async def _on_start_processes(self, message: StartProcesses, channel: Channel) -> None:
        self._procs = GangNode(self._identity, message, channel.send)

    async def _on_signal_processes(self, message: SignalProcesses, channel: Channel) -> None:
        if self._procs is not None:
            self._procs.signal(message.signal)

    async def _on_end_processes(self, message: EndProcesses, channel: Channel) -> None:
        if self._procs is not None:
            self._procs.end(message.grace)

    async def _on_dump_stacks(self, message: DumpStacks, channel: Channel) -> None:
        self._dumping = asyncio.create_task(self._dump_stacks())

    async def _on_control_recorded(self, message: ControlRecorded, channel: Channel) -> None:
        if self._requests is not None:
            self._requests.on_recorded(message.ids)

    async def _on_stop_work(self, message: StopWork, channel: Channel) -> None:
        began = running_now()
        await self.clean(message.logs)
        if message.check_seconds is not None:
            left = message.check_seconds - (running_now() - began)
            channel.send(await self.checks.repeat(max(0.0, left)))
        self.stopped = True
        channel.send(WorkStopped(message.cycle))

    # -- preparation and reports ----------------------------------------------------------------------------------

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
        except (OSError, ValueError, RunDirectoryError) as error:
            self._report_failure("service", f"the job's services could not be read: {error}")

    async def _prepare_ray(self, options: RayOptions, channel: Channel, leads: bool) -> None:
        """Start to import Ray: this takes most of its start time and needs no other node."""
        identity, cycle = self._identity, self._cycle
        try:
            usual = settings.temp_dir(identity.run.run_id, identity.attempt.number, cycle, identity.node_index)
            temp = avoid_occupied(usual)
            env = await retried(identity.run.env, node_environment, identity, cycle)
            env.update(self._services.environment() if self._services is not None else {})
            if options.group is not None:
                env[GROUP_VARIABLE] = options.group
            logs = identity.attempt.ray_logs_dir(cycle)
            setup = RaySetup(temp, os.path.join(logs, host_file_name(identity.host)), env, self._token)
            rank = 0 if leads else max(identity.node_index, 1)  # provisional: start_ray has the rank of the cycle
            facts = NodeFacts(
                rank,
                identity.host,
                self.location.topology,
                group=options.group,
                node_index=identity.node_index,
                domain=self.location.domain,
            )
            self._ray = RayNode(options, facts, setup, partial(self._on_ray_event, channel, cycle))
            await self._ray.warm()
        except ResourceMismatch as error:
            self._report_failure("resources", f"{identity.host}: {error}")
        except (OSError, ValueError, SpawnError, RunDirectoryError) as error:
            self._report_failure("ray", str(error))

    def _on_ray_event(self, channel: Channel, cycle: int, event: RayEvent) -> None:
        """Report what happens to this node's Ray."""
        if isinstance(event, RayFailed):
            self._report_failure("ray", event.reason)
        elif isinstance(event, HeadAddressKnown):
            channel.send(HeadAddress(event.address, event.dashboard, cycle))
        elif isinstance(event, NodesAlive):
            channel.send(RayAlive(event.node_indexes, cycle))
        elif isinstance(event, RayRunning):
            channel.send(RayStarted(cycle))
        elif isinstance(event, GcsRecovered):
            channel.send(GcsRestarted(event.restarts, event.reason, event.seconds, cycle))
        else:
            channel.send(Note(event.text))

    async def _dump_stacks(self) -> None:
        """Write the stacks of all processes. Runs as a task: a stop message may arrive meanwhile."""
        identity = self._identity
        if self._sections is not None:
            await self._sections.report()
        try:
            env = await asyncio.to_thread(node_environment, identity, self._cycle)
            dumped = await asyncio.to_thread(stacks.dump_stacks, identity.attempt.stacks(identity.node_index), env)
        except OSError as error:
            logger.warning("stacks could not be written: %s", error)
            dumped = False
        if self._channel is not None:
            self._channel.send(StacksDumped(dumped))

    async def _close_requests(self) -> None:
        if self._sections is not None:
            sections, self._sections = self._sections, None
            await sections.close()
        if self._requests is not None:
            requests, self._requests = self._requests, None
            await requests.close()

    async def _report_first_checks(self, channel: Channel) -> None:
        if self.checks.begun:
            channel.send(await self.checks.first_result())

    async def _run_built_in_checks(self) -> str | None:
        return (await self.checks.repeat()).failure

    def _report_health(self, ok: bool, reason: str) -> None:
        if self._channel is not None:
            self._channel.send(HealthReport(ok, reason))

    def _report_failure(self, phase: str, reason: str) -> None:
        logger.error("%s", reason)
        if self._channel is not None:
            reporting = asyncio.ensure_future(self._send_failure(self._channel, phase, reason, self._cycle))
            self._reporting.add(reporting)
            reporting.add_done_callback(self._reporting.discard)

    async def _send_failure(self, channel: Channel, phase: str, reason: str, cycle: int) -> None:
        """Send a failure with the last lines of the node's log, unless its filesystem hangs."""
        tail: list[str] = []
        reading = asyncio.to_thread(tail_lines, self._identity.attempt.node_log(self._identity.node_index))
        with contextlib.suppress(asyncio.TimeoutError):
            tail = await asyncio.wait_for(reading, TAIL_TIMEOUT_S)
        channel.send(NodeFailure(phase, reason, tuple(tail), cycle))

    async def clean(self, ending: LogCollection | None = None) -> None:
        """End and remove everything of the run on this node. Idempotent."""
        await self._check.close()
        await self._close_requests()
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
            await ray.stop(ending or leaderless_ending(self._identity.node_index))
