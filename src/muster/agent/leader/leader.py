"""The leader: feeds messages, files and deadlines to the run's state machine as events, and executes its commands."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from muster.agent.abandoned_job import mark_abandoned_job
from muster.agent.environment import given_variables
from muster.agent.job import Identity, Job, run_config
from muster.agent.leader.candidate import Candidate
from muster.agent.leader.command_executor import CommandExecutor
from muster.agent.leader.driver_supervisor import DriverSupervisor, LeaderContext
from muster.agent.leader.gang import GANG_REPORTS, Gang
from muster.agent.leader.leader_address import PEER_WAIT_S
from muster.agent.leader.leader_lease import LeaderLease
from muster.agent.leader.log_tail import LogTails
from muster.agent.leader.rundir_watch import RunDirectoryWatch
from muster.agent.leader.services import LeaderServices
from muster.agent.leader.spare_health import SpareHealth
from muster.agent.leader.status_publisher import StatusPublisher
from muster.agent.service_model import service_variables
from muster.agent.topology_probe import location_from_greeting, ranks_follow_topology
from muster.election.leader_silence import STARTUP_LOSS_S
from muster.lifecycle import events as m
from muster.lifecycle.config import FIRST_LEADER
from muster.lifecycle.roles import RunNode, join_refusal
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import NodeState, RunState
from muster.process import signal_name
from muster.process.lease import ProcessLease
from muster.rundir.redaction import secret_values

logger = logging.getLogger(__name__)

RUN_POLL_S = 0.5  # of deadlines, the stop request, the launcher's stderr and the driver
PUBLISH_INTERVAL_S = 0.2


class Leader:
    """Runs the job, cycle after cycle. `run` returns the job's exit code."""

    def __init__(self, identity: Identity, job: Job, candidate: Candidate, lease: ProcessLease) -> None:
        self._identity, self._job, self._candidate = identity, job, candidate
        config = run_config(identity, job, ranks_follow_topology(os.environ, job))
        self._machine = RunStateMachine(config, time.monotonic(), candidate.term_start)
        secrets = secret_values({**os.environ, **given_variables(identity), **service_variables(identity.run)})
        self._publisher = StatusPublisher(identity, self._machine, secrets, candidate.term)
        self._connections, self._leader_address = candidate.connections, candidate.leader_address
        self._connections.on_task, self._connections.on_join = self._background, self._on_join
        self._connections.on_message, self._connections.on_loss = self._on_message, self._on_loss
        self._connections.refusal = self._refusal
        lease.clear()  # nothing runs yet
        self._leader_lease = LeaderLease(
            self._machine, self._connections, candidate.membership, lease if config.failover else None
        )
        self._connections.on_answer = self._leader_lease.on_answer
        self._tasks: set[asyncio.Future[Any]] = set()
        self._concluded = asyncio.Event()
        self._stepped_down = False
        self.step_down_reason = f"{identity.host} has lost the majority of the nodes"
        self._signalled = False
        self._rundir_watch = RunDirectoryWatch(identity.attempt, RUN_POLL_S, config.hosts)
        self._tails = LogTails()
        parts = (self._machine, self._publisher, self._connections)
        self._services = LeaderServices(
            identity, *parts, self._off_loop, self.watch, self._feed, self._tails, lambda: not self._is_fenced()
        )
        self._driver_supervisor = DriverSupervisor(
            LeaderContext(
                identity,
                job,
                *parts,
                self._tails,
                self._off_loop,
                self.watch,
                self._own_address,
                self._feed,
                self._feed_failure,
                self._services.environment,
            )
        )
        self._executor = CommandExecutor(
            identity,
            job,
            *parts,
            self._driver_supervisor,
            self._services,
            self._leader_lease,
            self._own_address,
            self._background,
            self._concluded.set,
        )
        self._spare_health = SpareHealth(job, self._connections.send, self._publisher.phase)
        self._file_thread = ThreadPoolExecutor(1)  # one thread: an older status must never overwrite a newer one

    def start(self) -> None:
        """Begin to lead, with the members that have joined the candidate."""
        start = os.environ.get("MUSTER_JOB_START")
        self._publisher.mark("job_start", float(start) if start else None)
        self._publisher.mark("lead_ready")
        for task in self._candidate.tasks:
            self.watch(task)
        for rank, joined in self._candidate.joined.items():
            self._on_join(rank, joined.greeting, joined.sent)
        for rank, message in self._candidate.messages:
            self._on_message(rank, message)
        self._report_takeover()
        self._background(self._publish_regularly())
        self._background(self._poll())
        self._background(self._tick())

    def _report_takeover(self) -> None:
        """Publish why this node leads instead of the first one; as the error, if it can only end the run."""
        outcome, reason = self._machine.outcome, self._machine.restart_reason
        if outcome is not None and outcome.rank is not None:
            tail = self._tails.read(self._identity.attempt.node_log(outcome.rank))
            self._publisher.note_error(self._machine.nodes[outcome.rank], "lead", outcome.end_reason, tail)
        elif self._candidate.term or self._identity.rank != FIRST_LEADER:
            reason = reason or f"{self._machine.nodes[FIRST_LEADER].host} has not started its agent"
            self._publisher.phase(f"{self._identity.host} leads now, term {self._candidate.term}: {reason}")
            self._publisher.event("lead", rank=self._identity.rank, host=self._identity.host, reason=reason)

    async def run(self) -> int | None:
        """Lead until the run is over, publish the outcome, release all agents, and return the exit code.

        Returns None if this node has stepped down: its processes have ended, and another node may lead the run.
        """
        try:
            return await self._run()
        except Exception as error:  # the members must not wait for this leader
            logger.exception("the leader failed")
            self.step_down_reason = f"the leader {self._identity.host} failed: {error!r}"
            return await self._step_down()

    async def _run(self) -> int | None:
        ends = (self._concluded.wait(), self._leader_lease.watch())
        await asyncio.wait([asyncio.ensure_future(end) for end in ends], return_when=asyncio.FIRST_COMPLETED)
        if self._leader_lease.over or self._machine.state is RunState.YIELDED:
            return await self._step_down()
        await self._driver_supervisor.close()
        await self._driver_supervisor.copy_last_log()
        outcome = self._machine.outcome
        assert outcome is not None
        if self._leader_lease.over:
            return await self._step_down()
        await mark_abandoned_job(self._identity)
        await self._services.publish()
        self._publisher.run_ends(outcome)
        await self._off_loop(self._publisher.conclude, self._publisher.batch(), outcome, self._signalled)
        await self._connections.release(code=outcome.exit_code, ended=outcome.end_reason)
        return outcome.exit_code

    async def _step_down(self) -> int | None:
        """Stop leading: the lease has ended, or ends with the connections. Supervisors kill this node's processes."""
        self._stepped_down = True
        logger.warning("this node is no longer the leader")
        self._connections.close_all()
        await self._driver_supervisor.close()
        await self._off_loop(lambda: None)  # wait for the last status: none may be written after this
        return None

    def _is_fenced(self) -> bool:
        return self._stepped_down or self._leader_lease.over

    async def _off_loop(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run a file operation on the thread: the filesystem may hang for longer than the heartbeat timeout."""
        return await asyncio.get_running_loop().run_in_executor(self._file_thread, work, *args)

    def watch(self, task: asyncio.Future[Any]) -> None:
        """Keep a reference to a background task; an exception in it fails the run."""
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def forward_signal(self, signum: int) -> None:
        """Forward a signal of Slurm's --signal to the driver."""
        self._publisher.phase(f"{signal_name(signum)} is passed on to the driver")
        self._driver_supervisor.signal(signum)

    def stop(self, reason: str, signum: int, patient: bool = False) -> None:
        """Stop the run. `patient`: on a user's request; else Slurm has sent a signal, and SIGKILL follows soon."""
        self._signalled = self._signalled or not patient  # by Slurm, which may requeue the job
        if not patient and self._job.kill_wait is not None and self._executor.killed_at is None:
            self._executor.killed_at = time.monotonic() + self._job.kill_wait
        grace = self._job.stop_grace if patient else self._job.signal_grace
        self._feed(m.StopRequested(reason, signum, grace))

    # -- events in ------------------------------------------------------------------------------------------------

    def _feed(self, event: m.Event) -> None:
        if self._is_fenced():
            return
        commands = self._machine.handle(event, time.monotonic())
        self._spare_health.update(self._machine.changes)
        self._services.handle_changes()
        for command in commands:
            self._executor.execute(command)
        self._publisher.note_moves()
        self._leader_lease.update()

    def _feed_failure(self, event: m.Event, rank: int, phase: str, reason: str, tail: list[str]) -> None:
        """Feed the event and publish the failure as the run's first error, unless the run continues."""
        if self._machine.outcome is None:
            self._publisher.note_error(self._machine.nodes[rank], phase, reason, tail)
        self._feed(event)
        if self._machine.outcome is None:
            self._publisher.error = None

    def _refusal(self, rank: int, host: str) -> str | None:
        reason = join_refusal(self._machine.nodes, rank, host)
        if reason is not None:
            self._publisher.phase(f"refused: {reason}")
            self._publisher.event("refused", rank=rank, host=host, reason=reason)
        return reason

    def _on_join(self, rank: int, greeting: dict[str, Any], sent: float) -> None:
        known = greeting.get("charter") or {}
        self._leader_lease.on_join(rank, sent, known.get("version", -1))
        self._executor.welcome(rank)
        self._feed(m.Arrived(rank, greeting["host"], location_from_greeting(greeting)))

    def _on_loss(self, rank: int, how: str) -> None:
        self._driver_supervisor.on_node_lost(rank, self._connections.last_heard(rank))
        reason = f"the agent of {self._machine.nodes[rank].host} {how}"
        tail = self._tails.read(self._identity.attempt.node_log(rank))
        self._feed_failure(m.NodeLost(rank, reason), rank, self._machine.state.value, reason, tail)

    def _on_message(self, rank: int, message: dict[str, Any]) -> None:
        kind = message["type"]
        cycle: int = message.get("cycle", self._machine.cycle)
        if kind == "head_address" and cycle == self._machine.cycle:
            self._driver_supervisor.on_head_address(message["address"], message["dashboard"])
        elif kind == "alive":
            self._ray_alive(message["ranks"], cycle)
        elif kind == "started":
            self._feed(m.NodeReady(rank, cycle))
        elif kind == "note":
            host = self._machine.nodes[rank].host
            self._publisher.phase(f"{host}: {message['text']}")
            self._publisher.event("note", rank=rank, host=host, text=message["text"])
        elif kind == "unended":
            self._driver_supervisor.note_unended(rank, message["text"])
        elif kind == "failed":
            phase, reason = message["phase"], message["reason"]
            self._feed_failure(m.NodeFailed(rank, phase, reason, cycle), rank, phase, reason, message["tail"])
        elif kind == "health":
            self._feed(m.Health(rank, message["ok"], message["reason"]))
        elif kind == "signal":
            host, name = self._machine.nodes[rank].host, signal_name(message["signal"])
            self.stop(f"{host} received {name}", message["signal"])
        elif kind == "stacks":
            self._connections.answered(rank, message["python"])
        elif kind == "gone":
            self._feed(m.NodeGone(rank, cycle))
        elif kind == "procs_beat" and cycle == self._machine.cycle:
            self._driver_supervisor.on_beat(message["step"])
        elif kind in ("service", "service_load", "service_serves"):
            self._services.on_message(rank, message)
        elif kind in GANG_REPORTS and isinstance(self._driver_supervisor.driver, Gang):
            self._driver_supervisor.driver.on_message(rank, message)

    def _ray_alive(self, ranks: list[int], cycle: int) -> None:
        if self._machine.leader in ranks and cycle == self._machine.cycle and not self._machine.head_up:
            self._publisher.mark("ray_head_ready")
            self._feed(m.HeadUp(cycle))
        for rank in ranks:
            if self._machine.nodes[rank].state is NodeState.STARTING:
                self._feed(m.NodeReady(rank, cycle))

    async def _publish_regularly(self) -> None:
        while not (self._concluded.is_set() or self._stepped_down):
            await self._off_loop(self._publisher.write, self._publisher.batch())
            await asyncio.sleep(PUBLISH_INTERVAL_S)

    async def _tick(self) -> None:
        """Check deadlines. Separate from `_poll`, which waits for files that may hang."""
        while True:
            await asyncio.sleep(RUN_POLL_S)
            self._feed(m.Tick())

    async def _poll(self) -> None:
        """Poll the stop request, the launcher's stderr, startup heartbeats, and the driver."""
        while True:
            await asyncio.sleep(RUN_POLL_S)
            request, ends = await self._off_loop(self._rundir_watch.poll)
            if request is not None and self._machine.outcome is None:
                self.stop(request["reason"], request["signal"], request.get("patient", False))
            for end in ends:
                self._task_ended(end.host, end.rank, end.reason)
            await self._check_startup_heartbeats()
            await self._driver_supervisor.poll()

    async def _check_startup_heartbeats(self) -> None:
        """Detect nodes that were lost before they arrived if the launcher, which would report it, is lost as well."""
        expected = [node for node in self._machine.nodes if node.state is NodeState.EXPECTED]
        if not expected or self._candidate.term or self._machine.cycle:  # startup heartbeats end with the first leader
            return
        silent = await self._off_loop(self._rundir_watch.silent, [node.rank for node in expected])
        for node in expected:
            if node.rank in silent and node.state is NodeState.EXPECTED:
                self._fail_expected(node, f"no heartbeat for {STARTUP_LOSS_S:g} s, and its agent has not started")

    def _task_ended(self, host: str, rank: int | None, reason: str) -> None:
        if rank is not None:
            self._leader_lease.on_death(rank)
        for node in self._machine.nodes:
            if node.state is NodeState.EXPECTED and (node.rank == rank if rank is not None else node.host == host):
                self._fail_expected(node, reason)

    def _fail_expected(self, node: RunNode, reason: str) -> None:
        event = m.NodeFailed(node.rank, "start", f"{node.host}: {reason}", self._machine.cycle)
        tail = self._tails.read(self._identity.attempt.node_log(node.rank))
        self._feed_failure(event, node.rank, "start", reason, tail)

    # -- helpers ----------------------------------------------------------------------------------------------

    async def _own_address(self) -> str:
        """Return this node's address, if possible one that other nodes have reached."""
        timeout = self._leader_address.peer_timeout() if self._job.nodes > 1 else PEER_WAIT_S
        proven = await self._connections.wait_for_peer(timeout) if self._job.step_nodes > 1 else []
        return self._leader_address.head_address(proven)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        self.watch(asyncio.ensure_future(work))

    def _on_task_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the leader failed", exc_info=task.exception())
            reason, cycle = f"the leader failed: {task.exception()!r}", self._machine.cycle
            self._feed(m.NodeFailed(self._machine.leader, self._machine.state.value, reason, cycle))
