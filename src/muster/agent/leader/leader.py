"""The leader: one loop takes events from the inbox, feeds them to the run's state machine and executes what follows.

    event               handling
    AgentJoined         refuse it, or count it for the lease, welcome it, and feed Arrived
    AgentRejected       publish it
    HeartbeatAnswered   renew the lease
    AgentMessage        by the message's type, see `_MESSAGE_HANDLERS`
    AgentLost           feed NodeLost, which is the run's error unless the run continues
    RunDirectoryPolled  feed StopRequested, or NodeFailed for nodes that will not arrive
    StopSignalled       feed StopRequested with the short grace period that Slurm leaves
    SignalPassedOn      send the signal to the driver
    MachineEvent        feed the event
    Failure             feed the event; it is the run's error unless the run continues
    TimePassed          feed Tick, check the lease; publish that the run was suspended
    WorkFailed          feed NodeFailed for the leader's own node
    TermEnded           end the loop

Handlers never wait: whatever takes time is a task of the inbox, which posts an event when it is done. The parts of a
transition, and its commands, may be executed in any order. After every event the loop ends if the lease has ended.
While the lease is lapsed, after a suspension, only answers and time are handled; all other events wait.
While the end of the run is published, events are still handled, since the lease must be renewed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from muster.agent.control.codec import Message
from muster.agent.control.connections import AgentJoined, AgentLost, AgentMessage, AgentRejected, HeartbeatAnswered
from muster.agent.control.messages import (
    ChecksDone,
    ControlRequest,
    GangBeat,
    GcsRestarted,
    Greeting,
    HeadAddress,
    HealthReport,
    HungRankEnded,
    NodeFailure,
    Note,
    ProcessesEnded,
    RankFailed,
    RayAlive,
    RayStarted,
    SectionReport,
    ServiceLoad,
    ServiceServes,
    ServiceStatus,
    SignalReceived,
    StacksDumped,
    StartRay,
    StopWork,
    UnendedProcess,
    Welcome,
    WorkStopped,
)
from muster.agent.environment import given_variables
from muster.agent.event_loop import running_now
from muster.agent.job import Identity, Job, run_config
from muster.agent.leader.candidate import Candidate
from muster.agent.leader.check_reports import CheckReports
from muster.agent.leader.context import LeaderContext
from muster.agent.leader.driver import GangReport
from muster.agent.leader.driver_supervisor import DriverSupervisor
from muster.agent.leader.files import Files
from muster.agent.leader.hang_reports import HangReports
from muster.agent.leader.inbox import (
    Failure,
    LeaderEvent,
    MachineEvent,
    RunDirectoryPolled,
    SignalPassedOn,
    StopSignalled,
    TermEnded,
    TimePassed,
    WorkFailed,
)
from muster.agent.leader.leader_lease import LeaseExecutor
from muster.agent.leader.run_end import explained, hand_over, publish_outcome
from muster.agent.leader.rundir_watch import RunDirectoryWatch
from muster.agent.leader.services import LeaderServices
from muster.agent.leader.spare_health import SpareHealth
from muster.agent.leader.status_publisher import RunError, StatusPublisher
from muster.agent.leader.workload_requests import WorkloadRequests, inherit_requests
from muster.agent.log_collection import cycle_ending, run_ending
from muster.agent.service_model import service_variables
from muster.agent.topology_probe import ranks_follow_topology
from muster.election.leader_silence import STARTUP_LOSS_S
from muster.lifecycle import events as m
from muster.lifecycle.config import FIRST_LEADER, TermStart
from muster.lifecycle.roles import RunNode
from muster.lifecycle.state_machine import RunStateMachine, Transition
from muster.lifecycle.states import NodeState, RunState
from muster.process import signal_name
from muster.process.lease import ProcessLease
from muster.rundir.redaction import secret_values

logger = logging.getLogger(__name__)

RUN_POLL_S = 0.5  # of the stop request, the launcher's stderr and the driver
PUBLISH_INTERVAL_S = 0.2
SUSPENSION_REPORT_S = 5.0  # a shorter stop may be an overload, and has no consequences


class Leader:
    """Runs the job, cycle after cycle. `run` returns the job's exit code."""

    # -- construction -------------------------------------------------------------------------------------------

    @classmethod
    async def create(cls, identity: Identity, job: Job, candidate: Candidate, process_lease: ProcessLease) -> Leader:
        """Return the leader that the candidate has become. Raises RunDirectoryError if the filesystem fails."""
        files, start = Files(), candidate.term_start
        machine, publisher = await files.retried(identity.run.root, _read_run, identity, job, start, running_now())
        process_lease.clear()  # nothing runs yet
        lease = LeaseExecutor(machine, candidate.connections, candidate.membership, process_lease, candidate.in_use)
        inbox = candidate.inbox
        error = RunError(publisher, files, inbox)
        parts = (machine, candidate.connections, publisher, files, inbox, lease, error, candidate.leader_address)
        return cls(LeaderContext(identity, job, *parts))

    def __init__(self, context: LeaderContext) -> None:
        self._context, self._identity, self._job = context, context.identity, context.job
        self._machine, self._publisher, self._connections = context.machine, context.publisher, context.connections
        self._lease, self._error, self._inbox, self._files = context.lease, context.error, context.inbox, context.files
        self._services = LeaderServices(context)
        self._driver_supervisor = DriverSupervisor(context, self._services)
        self._spare_health = SpareHealth(context)
        self._checks = CheckReports(context)
        self._requests = WorkloadRequests(context, self._services.snapshot)
        self._hangs = HangReports(context)
        self._rundir_watch = RunDirectoryWatch(self._identity.attempt, RUN_POLL_S, self._machine.config.hosts)
        self._joined: set[int] = set()  # the admitted agents that are connected
        self._signalled = False  # by Slurm, which may requeue the job
        self._killed_at: float | None = None  # when Slurm sends SIGKILL
        self._suspended = 0.0  # seconds for which this process was stopped, to be published
        self._waiting: list[LeaderEvent] = []  # while the lease is lapsed
        self._ending: asyncio.Future[Any] | None = None  # publishes the end of the run, or hands it over
        self._regular: list[asyncio.Future[Any]] = []
        self.step_down_reason = f"{self._identity.host} has lost the majority of the nodes"

    # -- the loop -----------------------------------------------------------------------------------------------

    async def run(self) -> int | None:
        """Lead until the run is over, publish the outcome, release all agents, and return the exit code.

        Returns None if this node has stepped down: its processes have ended, and another node may lead the run.
        """
        try:
            self._start()
            code = await self._handle_events()
        except Exception as error:  # the members must not wait for this leader
            self._note_defect(error)
            code = None
        if code is None:
            await self._step_down()
        return code

    def _start(self) -> None:
        """Begin the term. The inbox contains the members that have joined the candidate."""
        start = os.environ.get("MUSTER_JOB_START")
        self._publisher.mark("job_start", float(start) if start else None)
        self._publisher.mark("lead_ready")
        self._execute(self._machine.start(running_now()))
        self._report_takeover()
        self._regular = [self._inbox.spawn(work) for work in (self._publish_regularly(), self._poll())]

    def _report_takeover(self) -> None:
        """Publish why this node leads instead of the first one; as the error, if it can only end the run."""
        outcome, reason, term = self._machine.outcome, self._machine.restart_reason, self._publisher.term
        if outcome is not None and outcome.node_index is not None:
            log = self._identity.attempt.node_log(outcome.node_index)
            self._error.note(self._machine.nodes[outcome.node_index], "lead", outcome.end_reason, log)
        elif term or self._identity.node_index != FIRST_LEADER:
            reason = reason or f"{self._machine.nodes[FIRST_LEADER].host} has not started its agent"
            self._publisher.phase(f"{self._identity.host} leads now, term {term}: {reason}")
            self._publisher.event("lead", rank=self._identity.node_index, host=self._identity.host, reason=reason)

    async def _handle_events(self) -> int | None:
        """Handle events until the term ends; return the exit code, or None if this node must stop leading."""
        while True:
            event = await self._inbox.next()
            if isinstance(event, TermEnded):
                return event.exit_code
            if self._lease.lapsed and not isinstance(event, (HeartbeatAnswered, TimePassed)):
                self._waiting.append(event)
            elif not self._lease.over:
                self._handle(event)
            if self._waiting and not self._lease.lapsed:
                self._inbox.put_back(self._waiting)
                self._waiting = []
            if self._lease.over and self._ending is None:  # else that sees it, unless it has written the outcome
                return None

    def _handle(self, event: LeaderEvent) -> None:
        try:
            _EVENT_HANDLERS[type(event)](self, event)
        except Exception as error:
            if isinstance(event, WorkFailed):
                raise
            self._inbox.post(WorkFailed(error))

    async def _publish_regularly(self) -> None:
        while True:
            await self._files.run(self._publisher.write, self._publisher.batch(self._services.snapshot))
            await asyncio.sleep(PUBLISH_INTERVAL_S)

    async def _poll(self) -> None:
        """Poll the run directory and the driver. Files may hang: deadlines are checked by the inbox's clock."""
        while True:
            await asyncio.sleep(RUN_POLL_S)
            news = await self._files.run(self._rundir_watch.poll, self._nodes_with_startup_heartbeats())
            if news is not None:
                self._inbox.post(news)
            await self._driver_supervisor.poll()

    def _nodes_with_startup_heartbeats(self) -> list[int]:
        """Return the nodes that have not arrived. Startup heartbeats end with the first leader."""
        if self._publisher.term or self._machine.cycle:
            return []
        expected = (node.node_index for node in self._machine.nodes if node.state is NodeState.EXPECTED)
        return [node_index for node_index in expected if node_index not in self._joined]

    # -- agents -------------------------------------------------------------------------------------------------

    def _on_agent_joined(self, event: AgentJoined) -> None:
        greeting, node_index = event.greeting, event.greeting.node_index
        refusal = self._machine.table.join_refusal(node_index, greeting.host)
        if refusal is not None:
            self._connections.refuse(node_index, refusal)
            self._publish_refusal(greeting, refusal)
            return
        self._joined.add(node_index)
        version = greeting.membership.version if greeting.membership is not None else -1
        self._lease.on_join(node_index, event.sent, version)
        self._welcome(node_index, self._machine.cycle)
        self._feed_all(self._checks.on_joined(greeting))

    def _on_agent_rejected(self, event: AgentRejected) -> None:
        self._publish_refusal(event.greeting, event.reason)

    def _publish_refusal(self, greeting: Greeting, reason: str) -> None:
        self._publisher.phase(f"refused: {reason}")
        self._publisher.event("refused", rank=greeting.node_index, host=greeting.host, reason=reason)

    def _on_heartbeat_answered(self, event: HeartbeatAnswered) -> None:
        if event.node_index in self._joined:
            self._lease.on_answer(event.node_index, event.sent, event.version)

    def _on_agent_message(self, event: AgentMessage) -> None:
        if event.node_index in self._joined:
            _MESSAGE_HANDLERS[type(event.message)](self, event.node_index, event.message)

    def _on_agent_lost(self, event: AgentLost) -> None:
        node_index = event.node_index
        if node_index not in self._joined:
            return
        self._joined.discard(node_index)
        self._checks.on_lost(node_index)
        self._driver_supervisor.on_node_lost(node_index, event.last_heard)
        reason, blamed = f"the agent of {self._machine.nodes[node_index].host} {event.how}", node_index
        if event.isolated:
            reason, blamed = f"the leader {self._identity.host} lost contact with all other nodes", self._machine.leader
        lost, log = m.NodeLost(node_index, reason, event.isolated), self._identity.attempt.node_log(blamed)
        self._on_failure(Failure(lost, blamed, self._machine.state.value, reason, log))

    # -- messages of agents -------------------------------------------------------------------------------------

    def _on_head_address(self, node_index: int, message: HeadAddress) -> None:
        if message.cycle == self._machine.cycle:
            self._driver_supervisor.on_head_address(message.address, message.dashboard)

    def _on_ray_alive(self, node_index: int, message: RayAlive) -> None:
        alive, cycle = message.node_indexes, message.cycle
        if self._machine.leader in alive and cycle == self._machine.cycle and not self._machine.head_up:
            self._publisher.mark("ray_head_ready")
            self._feed(m.HeadUp(cycle))
        for one in alive:
            if self._machine.nodes[one].state is NodeState.STARTING:
                self._feed(m.NodeReady(one, cycle))

    def _on_ray_started(self, node_index: int, message: RayStarted) -> None:
        self._feed(m.NodeReady(node_index, message.cycle))

    def _on_gcs_restarted(self, node_index: int, message: GcsRestarted) -> None:
        if message.cycle == self._machine.cycle:
            self._driver_supervisor.on_gcs_restarted(self._machine.nodes[node_index], message)

    def _on_note(self, node_index: int, message: Note) -> None:
        host = self._machine.nodes[node_index].host
        self._publisher.phase(f"{host}: {message.text}")
        self._publisher.event("note", rank=node_index, host=host, text=message.text)

    def _on_unended_process(self, node_index: int, message: UnendedProcess) -> None:
        self._driver_supervisor.note_unended(node_index, message.text)

    def _on_node_failure(self, node_index: int, message: NodeFailure) -> None:
        event = m.NodeFailed(node_index, message.phase, message.reason, message.cycle)
        self._on_failure(Failure(event, node_index, message.phase, message.reason, None, message.tail))

    def _on_health_report(self, node_index: int, message: HealthReport) -> None:
        self._feed(m.Health(node_index, message.ok, message.reason))

    def _on_checks_done(self, node_index: int, message: ChecksDone) -> None:
        self._feed_all(self._checks.on_done(node_index, message))

    def _on_signal_received(self, node_index: int, message: SignalReceived) -> None:
        host, name = self._machine.nodes[node_index].host, signal_name(message.signal)
        self._publisher.phase(f"{host} received {name}")  # Slurm signals all nodes: the first report names any of them
        self._on_stop_signalled(StopSignalled(f"the job received {name}", message.signal))

    def _on_stacks_dumped(self, node_index: int, message: StacksDumped) -> None:
        self._connections.answered(node_index, message.python)

    def _on_work_stopped(self, node_index: int, message: WorkStopped) -> None:
        self._feed(m.NodeGone(node_index, message.cycle))

    def _on_gang_beat(self, node_index: int, message: GangBeat) -> None:
        if message.cycle == self._machine.cycle:
            self._driver_supervisor.on_beat(message.step)

    def _on_control_request(self, node_index: int, message: ControlRequest) -> None:
        event = self._requests.record(node_index, message)
        if event is not None:
            self._feed(event)

    def _on_section_report(self, node_index: int, message: SectionReport) -> None:
        self._hangs.on_report(node_index, message)

    def _on_gang_report(self, node_index: int, message: GangReport) -> None:
        self._driver_supervisor.driver.on_message(node_index, message)

    def _on_service_message(self, node_index: int, message: ServiceStatus | ServiceLoad | ServiceServes) -> None:
        self._services.on_message(node_index, message)

    # -- the run directory, signals and time --------------------------------------------------------------------

    def _on_run_directory_polled(self, event: RunDirectoryPolled) -> None:
        request = event.stop_request
        if request is not None and self._machine.outcome is None:
            patient = request.get("patient", False)  # a user stops the run; else the launcher, before Slurm's SIGKILL
            self._stop(request["reason"], request["signal"], patient)
        for end in event.ended_tasks:
            self._on_task_ended(end.host, end.node_index, end.reason)
        for node_index in event.silent_nodes:
            reason = f"no heartbeat for {STARTUP_LOSS_S:g} s, and its agent has not started"
            self._fail_expected(self._machine.nodes[node_index], reason)

    def _on_task_ended(self, host: str, node_index: int | None, reason: str) -> None:
        """Handle that the launcher saw a task end: of a member, or of a node that will not arrive."""
        if node_index is not None:
            self._lease.on_death(node_index)
            self._fail_expected(self._machine.nodes[node_index], reason)
            return
        for node in self._machine.nodes:
            if node.host == host:
                self._fail_expected(node, reason)

    def _fail_expected(self, node: RunNode, reason: str) -> None:
        """Fail a node that has not arrived."""
        if node.state is NodeState.EXPECTED:
            event = m.NodeFailed(node.node_index, "start", f"{node.host}: {reason}", self._machine.cycle)
            log = self._identity.attempt.node_log(node.node_index)
            self._on_failure(Failure(event, node.node_index, "start", reason, log))

    def _on_stop_signalled(self, event: StopSignalled) -> None:
        self._stop(event.reason, event.signal, patient=False)

    def _stop(self, reason: str, signum: int, patient: bool) -> None:
        """Stop the run. `patient`: on a user's request; else Slurm has sent a signal, and SIGKILL follows soon."""
        self._signalled = self._signalled or not patient
        if not patient and self._job.kill_wait is not None and self._killed_at is None:
            self._killed_at = running_now() + self._job.kill_wait
        grace = self._job.stop_grace if patient else self._job.signal_grace
        self._feed(m.StopRequested(reason, signum, grace))

    def _on_signal_passed_on(self, event: SignalPassedOn) -> None:
        self._publisher.phase(f"{signal_name(event.signal)} is passed on to the driver")
        self._driver_supervisor.signal(event.signal)

    def _on_time_passed(self, event: TimePassed) -> None:
        self._lease.tick()
        self._suspended += event.stopped
        if self._lease.over or self._lease.lapsed:
            return
        if self._suspended >= SUSPENSION_REPORT_S:
            text = f"suspended for {self._suspended:.0f} s"
            self._publisher.phase(text)
            self._publisher.event("suspended", seconds=round(self._suspended, 1), text=text)
        self._suspended = 0.0
        self._feed(m.Tick())

    # -- the leader's own work ----------------------------------------------------------------------------------

    def _on_machine_event(self, event: MachineEvent) -> None:
        self._feed(event.event)

    def _on_failure(self, failure: Failure) -> None:
        """Feed the event and publish the failure as the run's first error, unless the run continues."""
        expected = isinstance(failure.event, m.DriverEnded) and self._machine.state is not RunState.RUNNING
        if self._machine.outcome is None and not expected:  # a driver that was asked to end has not failed
            node = self._machine.nodes[failure.node_index]
            self._error.note(node, failure.phase, failure.reason, failure.log, failure.tail)
        self._feed(failure.event)
        if self._machine.outcome is None:
            self._error.drop()

    def _on_work_failed(self, event: WorkFailed) -> None:
        logger.error("the leader failed", exc_info=event.error)
        reason, machine = f"the leader failed: {event.error!r}", self._machine
        self._feed(m.NodeFailed(machine.leader, machine.state.value, reason, machine.cycle))

    # -- transitions --------------------------------------------------------------------------------------------

    def _feed(self, event: m.Event) -> None:
        """Let the state machine handle an event, and do what follows from it."""
        if not self._lease.over:
            self._execute(self._machine.handle(event, running_now()))

    def _feed_all(self, events: Iterable[m.Event]) -> None:
        for event in events:
            self._feed(event)

    def _execute(self, transition: Transition) -> None:
        """Publish the changes of a transition, execute its commands, and update the lease; in any order."""
        self._spare_health.update(transition.changes)
        for command in transition.commands:
            _COMMAND_METHODS[type(command)](self, command)
        self._publisher.record_changes(transition.changes)
        self._services.handle_changes(transition)
        self._lease.update()

    # -- commands -----------------------------------------------------------------------------------------------

    def _start_head(self, command: m.StartHead) -> None:
        self._inbox.spawn(self._send_start_of_head(command))

    async def _send_start_of_head(self, command: m.StartHead) -> None:
        address = await self._context.own_address()
        self._connections.send(command.node_index, StartRay(0, address, None, None))

    def _start_worker(self, command: m.StartWorker) -> None:
        head = self._driver_supervisor.cluster.address
        self._connections.send(command.node_index, StartRay(command.rank, None, head, command.replaces))

    def _start_driver(self, command: m.StartDriver) -> None:
        if self._job.ray:
            self._publisher.mark("ray_ready")
        self._inbox.spawn(self._run_driver(command.cycle))

    async def _run_driver(self, cycle: int) -> None:
        await self._lease.wait_for_quorum(cycle)
        await self._services.publish()
        await self._services.wait_until_served()
        await self._driver_supervisor.run(cycle)

    def _start_services(self, command: m.StartServices) -> None:
        self._services.start(command)

    def _begin_cycle(self, command: m.BeginCycle) -> None:
        self._driver_supervisor.begin_cycle(command)

    def _end_driver(self, command: m.EndDriver) -> None:
        self._driver_supervisor.end(command.grace)

    def _stop_node(self, command: m.StopNode) -> None:
        """Stop the node, with the instructions for Ray's logs."""
        now, node_index, outcome = running_now(), command.node_index, command.outcome
        ends = [when for when in (command.deadline, self._killed_at) if when is not None]
        left = min(ends, default=now) - now
        logs = run_ending(node_index, outcome, left, self._machine.leader) if outcome else cycle_ending(node_index)
        check_seconds = self._checks.seconds_for_stop(outcome, left, self._signalled)
        self._connections.send(node_index, StopWork(command.cycle, logs, check_seconds))

    def _rejoin(self, command: m.Rejoin) -> None:
        self._welcome(command.node_index, command.cycle)

    def _conclude(self, command: m.Conclude) -> None:
        self._end_term(self._publish_end(command.outcome))

    def _yield(self, command: m.Yield) -> None:
        self._end_term(hand_over(self._context, command.reason, self._lease.last_membership(command.successor)))

    def _welcome(self, node_index: int, cycle: int) -> None:
        """Send what the node can prepare for a cycle before it has a rank in it."""
        options, leads = self._driver_supervisor.cluster.options(node_index), node_index == self._machine.leader
        message = Welcome(cycle, leads, self._job.interface, self._services.expected, options)
        self._connections.send(node_index, message)

    # -- the end ------------------------------------------------------------------------------------------------

    def _end_term(self, work: Coroutine[Any, Any, int | None]) -> None:
        self._ending = self._inbox.spawn(self._post_end(work))

    async def _post_end(self, work: Coroutine[Any, Any, int | None]) -> None:
        try:
            code = await work
        except Exception as error:
            self._note_defect(error)
            code = None
        self._inbox.post(TermEnded(code))

    async def _publish_end(self, outcome: m.RunOutcome) -> int | None:
        """Publish the outcome, release all agents and return the exit code; None if another node may lead meanwhile."""
        if outcome.state == "succeeded":
            self._error.drop()
        await self._driver_supervisor.close()
        await self._error.settle()
        if self._signalled:
            outcome = await self._files.run(explained, outcome, self._identity.attempt)
        if not await self._lease.wait_for_outcome():
            self.step_down_reason = f"{self.step_down_reason}: {outcome.end_reason}"
            return None
        return await publish_outcome(self._context, self._services, outcome, self._signalled, self._regular)

    async def _step_down(self) -> None:
        """Stop leading: the lease has ended, or ends with the connections. Supervisors kill this node's processes."""
        self._lease.resign()
        self._stop_regular_work()
        logger.warning("this node is no longer the leader")
        self._connections.close_all()
        await self._driver_supervisor.close()
        await self._files.finish()  # no status may be written after this

    def _stop_regular_work(self) -> None:
        for task in self._regular:
            task.cancel()

    def _note_defect(self, error: Exception) -> None:
        logger.error("the leader failed", exc_info=error)
        self.step_down_reason = f"the leader {self._identity.host} failed: {error!r}"


_EVENT_HANDLERS: dict[type[LeaderEvent], Callable[[Leader, Any], None]] = {
    AgentJoined: Leader._on_agent_joined,
    AgentRejected: Leader._on_agent_rejected,
    HeartbeatAnswered: Leader._on_heartbeat_answered,
    AgentMessage: Leader._on_agent_message,
    AgentLost: Leader._on_agent_lost,
    RunDirectoryPolled: Leader._on_run_directory_polled,
    StopSignalled: Leader._on_stop_signalled,
    SignalPassedOn: Leader._on_signal_passed_on,
    MachineEvent: Leader._on_machine_event,
    Failure: Leader._on_failure,
    TimePassed: Leader._on_time_passed,
    WorkFailed: Leader._on_work_failed,
}

_COMMAND_METHODS: dict[type[m.Command], Callable[[Leader, Any], None]] = {
    m.StartHead: Leader._start_head,
    m.StartWorker: Leader._start_worker,
    m.StartServices: Leader._start_services,
    m.StartDriver: Leader._start_driver,
    m.EndDriver: Leader._end_driver,
    m.StopNode: Leader._stop_node,
    m.BeginCycle: Leader._begin_cycle,
    m.Rejoin: Leader._rejoin,
    m.Conclude: Leader._conclude,
    m.Yield: Leader._yield,
}

_MESSAGE_HANDLERS: dict[type[Message], Callable[[Leader, int, Any], None]] = {
    HeadAddress: Leader._on_head_address,
    RayAlive: Leader._on_ray_alive,
    RayStarted: Leader._on_ray_started,
    GcsRestarted: Leader._on_gcs_restarted,
    Note: Leader._on_note,
    UnendedProcess: Leader._on_unended_process,
    NodeFailure: Leader._on_node_failure,
    HealthReport: Leader._on_health_report,
    ChecksDone: Leader._on_checks_done,
    SignalReceived: Leader._on_signal_received,
    StacksDumped: Leader._on_stacks_dumped,
    WorkStopped: Leader._on_work_stopped,
    GangBeat: Leader._on_gang_beat,
    ControlRequest: Leader._on_control_request,
    SectionReport: Leader._on_section_report,
    RankFailed: Leader._on_gang_report,
    HungRankEnded: Leader._on_gang_report,
    ProcessesEnded: Leader._on_gang_report,
    ServiceStatus: Leader._on_service_message,
    ServiceLoad: Leader._on_service_message,
    ServiceServes: Leader._on_service_message,
}


def _read_run(
    identity: Identity, job: Job, term_start: TermStart, now: float
) -> tuple[RunStateMachine, StatusPublisher]:
    """Make what is made from files. Not on the event loop."""
    config = run_config(identity, job, ranks_follow_topology(os.environ, job))
    machine = RunStateMachine(config, now, inherit_requests(identity.attempt, term_start))
    secrets = secret_values({**os.environ, **given_variables(identity), **service_variables(identity.run)})
    return machine, StatusPublisher(identity, machine, secrets, term_start.term)
