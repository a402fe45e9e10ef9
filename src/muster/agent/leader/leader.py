"""The leader: the edge around the protocol. It listens, feeds events in, and carries the commands out."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from muster.agent.environment import given_variables
from muster.agent.gang.gang import REPORTS, Gang
from muster.agent.job import Identity, Job, plan_of
from muster.agent.leader.candidate import Candidate
from muster.agent.leader.command_executor import CommandExecutor
from muster.agent.leader.driver_supervisor import DriverSupervisor, LeaderContext
from muster.agent.leader.leader_address import PEER_WAIT_S
from muster.agent.leader.leader_lease import LeaderLease
from muster.agent.leader.log_tail import LogTails
from muster.agent.leader.rundir_watch import RunDirectoryWatch
from muster.agent.leader.spare_health import SpareHealth
from muster.agent.leader.status_publisher import StatusPublisher
from muster.agent.leaderless import note_left_job
from muster.agent.services.leader import LeadServices
from muster.agent.services.model import service_variables
from muster.agent.topology_probe import matters, place_from
from muster.election.leader_silence import STARTUP_LOSS_S
from muster.lifecycle import events as m
from muster.lifecycle.admission import refusal
from muster.lifecycle.config import FIRST_LEADER
from muster.lifecycle.roles import RunNode
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import NodeState, RunState
from muster.process import signal_name
from muster.process.lease import ProcessLease
from muster.rundir.redaction import secret_values

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # how often deadlines, the stop request and the launcher's stderr are looked at
PUBLISH_S = 0.2


class Leader:
    """Runs the job, cycle after cycle, to its end. `run` returns the exit code of the job."""

    def __init__(self, identity: Identity, job: Job, candidate: Candidate, lease: ProcessLease) -> None:
        self._identity, self._job, self._candidate = identity, job, candidate
        plan = plan_of(identity, job, matters(os.environ, job))
        self._protocol = RunStateMachine(plan, time.monotonic(), candidate.term_start)
        secrets = secret_values({**os.environ, **given_variables(identity), **service_variables(identity.run)})
        self._publisher = StatusPublisher(identity, self._protocol, secrets, candidate.term)
        self._members, self._leader_address = candidate.members, candidate.leader_address
        self._members.on_task, self._members.on_join = self._background, self._joined
        self._members.on_message, self._members.on_loss = self._take, self._lost
        self._members.refusal = self._refusal
        lease.clear()  # nothing runs yet
        self._leader_lease = LeaderLease(
            self._protocol, self._members, candidate.membership, lease if plan.succession else None
        )
        self._members.on_answer = self._leader_lease.answered
        self._tasks: set[asyncio.Future[Any]] = set()
        self._concluded = asyncio.Event()
        self._gave_way = False
        self.parting = f"{identity.host} has lost the majority of the nodes"  # why it led no more, if it gave way
        self._signalled = False
        self._outside = RunDirectoryWatch(identity.attempt, LOOK_S, plan.hosts)
        self._tails = LogTails()
        self._services = LeadServices(
            identity,
            self._protocol,
            self._publisher,
            self._members,
            self._off_loop,
            self.watch,
            self._feed,
            self._tails,
            lambda: not self._gave_way and not self._leader_lease.over,
        )
        self._driving = DriverSupervisor(
            LeaderContext(
                identity,
                job,
                self._protocol,
                self._publisher,
                self._members,
                self._tails,
                self._off_loop,
                self.watch,
                self._own_address,
                self._feed,
                self._feed_failure,
                self._services.environment,
            )
        )
        self._orders = CommandExecutor(
            identity,
            job,
            self._protocol,
            self._publisher,
            self._members,
            self._driving,
            self._services,
            self._leader_lease,
            self._own_address,
            self._background,
            self._concluded.set,
        )
        self._spares = SpareHealth(job, self._members.send, self._publisher.phase)
        self._files = ThreadPoolExecutor(1)  # one thread, so that an older status never overtakes the last one

    def start(self) -> None:
        """Take the seat: those who have joined it are members from now on."""
        start = os.environ.get("MUSTER_JOB_START")
        self._publisher.mark("job_start", float(start) if start else None)
        self._publisher.mark("lead_ready")
        for task in self._candidate.tasks:
            self.watch(task)
        for rank, joined in self._candidate.joined.items():
            self._joined(rank, joined.greeting, joined.spoken)
        for rank, message in self._candidate.heard:
            self._take(rank, message)
        self._tell_inheritance()
        self._background(self._publish_regularly())
        self._background(self._look_around())
        self._background(self._tick())

    def _tell_inheritance(self) -> None:
        """A leader that is not the first node says why; where all it can do is to end the run, that is the error."""
        outcome, reason = self._protocol.outcome, self._protocol.restart_reason
        if outcome is not None and outcome.rank is not None:
            tail = self._tails.of(self._identity.attempt.node_log(outcome.rank))
            self._publisher.note_error(self._protocol.nodes[outcome.rank], "lead", outcome.end_reason, tail)
        elif self._candidate.term or self._identity.rank != FIRST_LEADER:
            reason = reason or f"{self._protocol.nodes[FIRST_LEADER].host} has not started its agent"
            self._publisher.phase(f"{self._identity.host} leads now, term {self._candidate.term}: {reason}")
            self._publisher.event("lead", rank=self._identity.rank, host=self._identity.host, reason=reason)

    async def run(self) -> int | None:
        """Until the run is concluded; then publish the outcome and let everybody go.

        None if others may go on without this leader: then everything it ran has ended, and it has nothing to say.
        """
        try:
            return await self._run()
        except Exception as error:  # nobody else would ever speak to the members again
            logger.exception("the leader failed")
            self.parting = f"the leader {self._identity.host} failed: {error!r}"
            return await self._give_way()

    async def _run(self) -> int | None:
        over: list[asyncio.Future[Any]] = [asyncio.ensure_future(wait) for wait in self._ends()]
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        if self._leader_lease.over or self._protocol.state is RunState.YIELDED:
            return await self._give_way()
        await self._driving.close()
        await self._driving.keep_last_log()
        outcome = self._protocol.outcome
        assert outcome is not None
        if self._leader_lease.over:
            return await self._give_way()
        await note_left_job(self._identity)
        await self._services.publish()
        self._publisher.run_ends(outcome)
        await self._off_loop(self._publisher.conclude, self._publisher.batch(), outcome, self._signalled)
        await self._members.release(code=outcome.exit_code, ended=outcome.end_reason)
        return outcome.exit_code

    def _ends(self) -> tuple[Coroutine[Any, Any, Any], Coroutine[Any, Any, Any]]:
        return self._concluded.wait(), self._leader_lease.watch()

    async def _give_way(self) -> int | None:
        """The lease is over, or ends with our last word: the supervisors kill what ran here."""
        self._gave_way = True
        logger.warning("this node is no longer the leader")
        self._members.close_all()
        await self._driving.close()
        await self._off_loop(lambda: None)  # after the last status: nobody may take ours for that of another leader
        return None

    async def _off_loop(self, work: Callable[..., Any], *args: Any) -> Any:
        """File operations, on a thread: the filesystem may pause for longer than our agents wait for a heartbeat."""
        return await asyncio.get_running_loop().run_in_executor(self._files, work, *args)

    def watch(self, working: asyncio.Future[Any]) -> None:
        """Keep a task beside everything else; a defect in it must not go unseen: the run fails."""
        self._tasks.add(working)
        working.add_done_callback(self._finished)

    def forward_signal(self, signum: int) -> None:
        """Slurm's --signal: the driver's business."""
        self._publisher.phase(f"{signal_name(signum)} is passed on to the driver")
        self._driving.signal(signum)

    def stop(self, reason: str, signum: int, patient: bool = False) -> None:
        """A request from outside. After a signal of Slurm's its SIGKILL is near; a person can wait."""
        self._signalled = self._signalled or not patient  # by Slurm, perhaps to begin again
        if not patient and self._job.kill_wait is not None and self._orders.killed_at is None:
            self._orders.killed_at = time.monotonic() + self._job.kill_wait
        grace = self._job.stop_grace if patient else self._job.signal_grace
        self._feed(m.StopRequested(reason, signum, grace))

    # -- events in ----------------------------------------------------------------------------------------------

    def _feed(self, event: m.Event) -> None:
        if self._gave_way or self._leader_lease.over:
            return
        commands = self._protocol.handle(event, time.monotonic())
        self._spares.look(self._protocol.moves)
        self._services.look()
        for command in commands:
            self._orders.carry_out(command)
        self._publisher.note_moves()
        self._leader_lease.look()

    def _feed_failure(self, event: m.Event, rank: int, phase: str, reason: str, tail: list[str]) -> None:
        """Keep the first error for the status, with the last lines; it is none if the run goes on all the same."""
        if self._protocol.outcome is None:
            self._publisher.note_error(self._protocol.nodes[rank], phase, reason, tail)
        self._feed(event)
        if self._protocol.outcome is None:
            self._publisher.error = None

    def _refusal(self, rank: int, host: str) -> str | None:
        reason = refusal(self._protocol.nodes, rank, host)
        if reason is not None:
            self._publisher.phase(f"refused: {reason}")
            self._publisher.event("refused", rank=rank, host=host, reason=reason)
        return reason

    def _joined(self, rank: int, greeting: dict[str, Any], spoken: float) -> None:
        known = greeting.get("charter") or {}
        self._leader_lease.joined(rank, spoken, known.get("version", -1))
        self._orders.welcome(rank)
        self._feed(m.Arrived(rank, greeting["host"], place_from(greeting)))

    def _lost(self, rank: int, how: str) -> None:
        """Told in words, and with what the node's log said last."""
        self._driving.lost(rank, self._members.last_heard(rank))
        reason = f"the agent of {self._protocol.nodes[rank].host} {how}"
        tail = self._tails.of(self._identity.attempt.node_log(rank))
        self._feed_failure(m.NodeLost(rank, reason), rank, self._protocol.state.value, reason, tail)

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        kind = message["type"]
        cycle: int = message.get("cycle", self._protocol.cycle)
        if kind == "head_address" and cycle == self._protocol.cycle:
            self._driving.head_has_address(message["address"], message["dashboard"])
        elif kind == "alive":
            self._ray_alive(message["ranks"], cycle)
        elif kind == "started":
            self._feed(m.NodeReady(rank, cycle))
        elif kind == "note":
            host = self._protocol.nodes[rank].host
            self._publisher.phase(f"{host}: {message['text']}")
            self._publisher.event("note", rank=rank, host=host, text=message["text"])
        elif kind == "unended":
            self._driving.note_unended(rank, message["text"])
        elif kind == "failed":
            phase, reason = message["phase"], message["reason"]
            self._feed_failure(m.NodeFailed(rank, phase, reason, cycle), rank, phase, reason, message["tail"])
        elif kind == "health":
            self._feed(m.Health(rank, message["ok"], message["reason"]))
        elif kind == "signal":
            host, name = self._protocol.nodes[rank].host, signal_name(message["signal"])
            self.stop(f"{host} received {name}", message["signal"])
        elif kind == "stacks":
            self._members.answered(rank, message["python"])
        elif kind == "gone":
            self._feed(m.NodeGone(rank, cycle))
        elif kind == "procs_beat" and cycle == self._protocol.cycle:
            self._driving.beaten(message["step"])
        elif kind in ("service", "service_load", "service_serves"):
            self._services.take(rank, message)
        elif kind in REPORTS and isinstance(self._driving.driver, Gang):
            self._driving.driver.take(rank, message)

    def _ray_alive(self, ranks: list[int], cycle: int) -> None:
        if self._protocol.leader in ranks and cycle == self._protocol.cycle and not self._protocol.head_up:
            self._publisher.mark("ray_head_ready")
            self._feed(m.HeadUp(cycle))
        for rank in ranks:
            if self._protocol.nodes[rank].state is NodeState.STARTING:
                self._feed(m.NodeReady(rank, cycle))

    async def _publish_regularly(self) -> None:
        while not (self._concluded.is_set() or self._gave_way):
            await self._off_loop(self._publisher.write, self._publisher.batch())
            await asyncio.sleep(PUBLISH_S)

    async def _tick(self) -> None:
        """Deadlines; apart from all that waits for files, which may pause."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._feed(m.Tick())

    async def _look_around(self) -> None:
        """What no event announces: a stop request in the run directory, the launcher's stderr."""
        while True:
            await asyncio.sleep(LOOK_S)
            request, ends = await self._off_loop(self._outside.look)
            if request is not None and self._protocol.outcome is None:
                self.stop(request["reason"], request["signal"], request.get("patient", False))
            for end in ends:
                self._task_ended(end.host, end.rank, end.reason)
            await self._look_for_silent()
            await self._driving.look()

    async def _look_for_silent(self) -> None:
        """Nodes that were lost before they arrived, where the launcher could not say so: it may be gone as well."""
        expected = [node for node in self._protocol.nodes if node.state is NodeState.EXPECTED]
        if not expected or self._candidate.term or self._protocol.cycle:  # heartbeats are of the time before a leader
            return
        silent = await self._off_loop(self._outside.silent, [node.rank for node in expected])
        for node in expected:
            if node.rank in silent and node.state is NodeState.EXPECTED:
                self._never_arrived(node, f"no sign of life for {STARTUP_LOSS_S:g} s, and its agent has not started")

    def _task_ended(self, host: str, rank: int | None, reason: str) -> None:
        if rank is not None:
            self._leader_lease.died(rank)
        for node in self._protocol.nodes:
            if node.state is NodeState.EXPECTED and (node.rank == rank if rank is not None else node.host == host):
                self._never_arrived(node, reason)

    def _never_arrived(self, node: RunNode, reason: str) -> None:
        event = m.NodeFailed(node.rank, "start", f"{node.host}: {reason}", self._protocol.cycle)
        tail = self._tails.of(self._identity.attempt.node_log(node.rank))
        self._feed_failure(event, node.rank, "start", reason, tail)

    # -- small parts ---------------------------------------------------------------------------------------------

    async def _own_address(self) -> str:
        """One that another node has reached: only they can tell which of ours it is, where any has to reach it."""
        patience = self._leader_address.patience() if self._job.nodes > 1 else PEER_WAIT_S
        proven = await self._members.wait_for_peer(patience) if self._job.step_nodes > 1 else []
        return self._leader_address.of_the_head(proven)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        self.watch(asyncio.ensure_future(work))

    def _finished(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the leader failed", exc_info=task.exception())
            reason, cycle = f"the leader failed: {task.exception()!r}", self._protocol.cycle
            self._feed(m.NodeFailed(self._protocol.leader, self._protocol.state.value, reason, cycle))
