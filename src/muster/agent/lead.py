"""The lead: the edge around the protocol. It listens, feeds events in, and carries the commands out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from muster.agent.cluster import Cluster
from muster.agent.cycle_log import CycleLogs
from muster.agent.driver import Driver
from muster.agent.entitlement import Entitlement
from muster.agent.environment import given_variables, job_environment
from muster.agent.gang import REPORTS, Gang
from muster.agent.guests import Guests
from muster.agent.headway import Headway
from muster.agent.job import Identity, Job, node_tail, plan_of, tail_of
from muster.agent.log import say
from muster.agent.orphan import note_left_job
from muster.agent.outside import Outside
from muster.agent.place import matters, place_from
from muster.agent.publisher import Publisher
from muster.agent.seat import Seat
from muster.agent.spare_watch import SpareWatch
from muster.agent.stall import Stall
from muster.agent.turns import cycle_ending, ending
from muster.board.secrets import secret_values
from muster.process import Exit, signal_name
from muster.process.lease import Lease
from muster.rendezvous import messages as m
from muster.rendezvous.admission import refusal
from muster.rendezvous.plan import RESTART
from muster.rendezvous.protocol import Protocol
from muster.rendezvous.states import NodeState, RunState

LOOK_S = 0.5  # how often deadlines, the stop request and the launcher's stderr are looked at
PUBLISH_S = 0.2
UNKILLABLE_S = 5.0
ABORT_S = 3.0  # for a stalled driver to print its stacks
PROGRESS_S = 2.0
KEEP_LOG_S = 5.0  # the outcome does not wait longer for a copy of the last cycle's log
STACKS_S = 45.0  # for all nodes to write their stacks


class Lead:
    """Runs the job, cycle after cycle, to its end. `run` returns the exit code of the job."""

    def __init__(self, identity: Identity, job: Job, seat: Seat, lease: Lease) -> None:
        self._identity, self._job, self._seat, self._lease = identity, job, seat, lease
        plan = plan_of(identity, job, matters(os.environ, job))
        self._protocol = Protocol(plan, time.monotonic(), seat.mandate)
        secrets = secret_values({**os.environ, **given_variables(identity)})
        self._publisher = Publisher(identity, self._protocol, secrets, seat.term)
        self._members, self._whereabouts = seat.members, seat.whereabouts
        self._members.on_task, self._members.on_join = self._background, self._joined
        self._members.on_message, self._members.on_loss = self._take, self._lost
        self._members.refusal = self._refusal
        lease.lift()  # nothing runs yet
        self._entitlement = Entitlement(self._protocol, self._members, seat.charter, lease if plan.succession else None)
        self._members.on_answer = self._entitlement.answered
        self._cluster = Cluster(identity, job)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._concluded = asyncio.Event()
        self._gave_way = False
        self._driver = self._new_driver()
        self._signalled = False
        self._stall: Stall | None = None  # while the driver runs, if it may not be silent for long
        self._stalling: str | None = None  # in words, once it has stalled
        self._driver_left = asyncio.Event()
        self._killed_at: float | None = None  # when Slurm's SIGKILL will come
        self._outside = Outside(identity.attempt, plan.hosts)
        self._guests = Guests(identity, self._publisher, self._off_loop, self.watch)
        self._logs = CycleLogs(identity.attempt)
        self._headway = Headway(identity.attempt.beat)
        self._spares = SpareWatch(job, self._members.send, self._publisher.phase)
        self._files = ThreadPoolExecutor(1)  # one thread, so that an older status never overtakes the last one

    def start(self) -> None:
        """Take the seat: those who have joined it are members from now on."""
        start = os.environ.get("MUSTER_JOB_START")
        self._publisher.mark("job_start", float(start) if start else None)
        self._publisher.mark("lead_ready")
        for task in self._seat.tasks:
            self.watch(task)
        for rank, joined in self._seat.joined.items():
            self._joined(rank, joined.greeting, joined.spoken)
        self._tell_inheritance()
        self._background(self._publish_regularly())
        self._background(self._look_around())
        self._background(self._tick())

    def _tell_inheritance(self) -> None:
        """A later lead says why there is one; where all it can do is to end the run, that is the error."""
        outcome, reason = self._protocol.outcome, self._protocol.restart_reason
        if outcome is not None and outcome.rank is not None:
            tail = node_tail(self._identity.attempt, outcome.rank)
            self._publisher.note_error(self._protocol.nodes[outcome.rank], "lead", outcome.end_reason, tail)
        elif self._seat.term:
            self._publisher.phase(f"{self._identity.host} leads now, term {self._seat.term}: {reason}")
            self._publisher.event("lead", rank=self._identity.rank, host=self._identity.host, reason=reason)

    async def run(self) -> int | None:
        """Until the run is concluded; then publish the outcome and let everybody go.

        None if others may go on without this lead: then everything it ran has ended, and it has nothing to say.
        """
        over: list[asyncio.Future[Any]] = [asyncio.ensure_future(wait) for wait in self._ends()]
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        if self._lease.expired or self._protocol.state is RunState.YIELDED:
            return await self._give_way()
        with contextlib.suppress(asyncio.TimeoutError):  # an unkillable driver must not hold the outcome back
            await asyncio.wait_for(asyncio.gather(self._driver.close(), self._guests.close(0.0)), UNKILLABLE_S)
        if self._protocol.cycle:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._keep_log(self._protocol.cycle), KEEP_LOG_S)
        outcome = self._protocol.outcome
        assert outcome is not None
        if self._lease.expired:
            return await self._give_way()
        await note_left_job(self._identity)
        self._publisher.run_ends(outcome)
        await self._off_loop(self._publisher.conclude, self._publisher.batch(), outcome, self._signalled)
        await self._members.dismiss(code=outcome.exit_code)
        return outcome.exit_code

    def _ends(self) -> tuple[Coroutine[Any, Any, Any], Coroutine[Any, Any, Any]]:
        return self._concluded.wait(), self._entitlement.watch()

    async def _give_way(self) -> int | None:
        """The lease is over: the keepers have killed, or are killing, what ran here."""
        self._gave_way = True
        say("leads no more")
        self._members.abandon()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(self._driver.close(), self._guests.close(0.0)), UNKILLABLE_S)
        return None

    async def _off_loop(self, work: Callable[..., Any], *args: Any) -> Any:
        """File operations, on a thread: the filesystem may pause for longer than our agents wait for a heartbeat."""
        return await asyncio.get_running_loop().run_in_executor(self._files, work, *args)

    def watch(self, working: asyncio.Future[Any]) -> None:
        """Keep a task beside everything else; a defect in it must not go unseen: the run fails."""
        self._tasks.add(working)
        working.add_done_callback(self._finished)

    def pass_on(self, signum: int) -> None:
        """Slurm's --signal: the driver's business."""
        self._publisher.phase(f"{signal_name(signum)} is passed on to the driver")
        self._driver.signal(signum)
        self._guests.signal(signum)

    def stop(self, reason: str, signum: int, patient: bool = False) -> None:
        """A request from outside. After a signal of Slurm's its SIGKILL is near; a person can wait."""
        self._signalled = self._signalled or not patient  # by Slurm, perhaps to begin again
        if not patient and self._job.kill_wait is not None and self._killed_at is None:
            self._killed_at = time.monotonic() + self._job.kill_wait
        grace = self._job.stop_grace if patient else self._job.signal_grace
        self._feed(m.StopRequested(reason, signum, grace))

    # -- events in ----------------------------------------------------------------------------------------------

    def _feed(self, event: m.Event) -> None:
        if self._gave_way:
            return
        commands = self._protocol.handle(event, time.monotonic())
        self._spares.look(self._protocol.moves)
        for command in commands:
            self._perform(command)
        self._publisher.note_moves()
        self._entitlement.look()

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
        self._entitlement.joined(rank, spoken, known.get("version", -1))
        self._welcome(rank)
        self._feed(m.Arrived(rank, greeting["host"], place_from(greeting)))

    def _welcome(self, rank: int) -> None:
        options, cycle = self._cluster.options(rank), self._protocol.cycle
        leads = rank == self._protocol.lead
        self._members.send(rank, "welcome", cycle=cycle, ray=options, interface=self._job.interface, leads=leads)

    def _lost(self, rank: int, how: str, silent: bool) -> None:
        """Told in words, and with what the node's log said last."""
        self._entitlement.lost(rank, silent)
        if isinstance(self._driver, Gang):
            self._driver.lost(rank)
        reason = f"the agent of {self._protocol.nodes[rank].host} {how}"
        tail = node_tail(self._identity.attempt, rank)
        self._feed_failure(m.NodeLost(rank, reason), rank, self._protocol.state.value, reason, tail)

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        kind = message["type"]
        cycle: int = message.get("cycle", self._protocol.cycle)
        if kind == "head_address" and cycle == self._protocol.cycle:
            self._head_has_address(message["address"], message["dashboard"])
        elif kind == "alive":
            self._ray_alive(message["ranks"], cycle)
        elif kind == "started":
            self._feed(m.Ready(rank, cycle))
        elif kind == "note":
            host = self._protocol.nodes[rank].host
            self._publisher.phase(f"{host}: {message['text']}")
            self._publisher.event("note", rank=rank, host=host, text=message["text"])
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
        elif kind in REPORTS and isinstance(self._driver, Gang):
            self._driver.take(rank, message)

    def _ray_alive(self, ranks: list[int], cycle: int) -> None:
        if self._protocol.lead in ranks and cycle == self._protocol.cycle and not self._protocol.head_up:
            self._publisher.mark("ray_head_ready")
            self._feed(m.HeadUp(cycle))
        for rank in ranks:
            if self._protocol.nodes[rank].state is NodeState.STARTING:
                self._feed(m.Ready(rank, cycle))

    async def _publish_regularly(self) -> None:
        while not self._concluded.is_set():
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
            await self._note_progress()
            if self._stall is not None and await self._off_loop(self._stall.look, time.monotonic()):
                self._background(self._stalled(self._stall.timeout))
                self._stall = None

    async def _note_progress(self) -> None:
        """For the rule against cycles that lead nowhere."""
        if self._protocol.driver_running and not self._protocol.progressed:
            cycle = await self._off_loop(self._headway.look, time.monotonic())
            if cycle is not None:
                self._feed(m.Progress(cycle))

    async def _stalled(self, timeout: float) -> None:
        """What every process is doing is kept before anything is ended."""
        reason = f"the driver stalled: no output and no muster.beat() for {timeout:g} s; see logs/stacks-*.txt"
        self._publisher.phase(reason)
        self._publisher.event("stalled", seconds=timeout)
        cycle = self._protocol.cycle
        seen = await self._members.ask("stacks", STACKS_S)
        self._stalling = reason
        if not any(seen):
            self._driver.signal(signal.SIGABRT)  # Python's own fault handler then prints where the driver is
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._driver_left.wait(), ABORT_S)
        self._feed(m.DriverStalled(reason, cycle))

    def _task_ended(self, host: str, rank: int | None, reason: str) -> None:
        for node in self._protocol.nodes:
            if node.state is NodeState.EXPECTED and (node.rank == rank if rank is not None else node.host == host):
                event = m.NodeFailed(node.rank, "start", f"{host}: {reason}", self._protocol.cycle)
                self._feed_failure(event, node.rank, "start", reason, node_tail(self._identity.attempt, node.rank))

    # -- commands out -------------------------------------------------------------------------------------------

    def _perform(self, command: m.Command) -> None:
        if isinstance(command, m.StartHead):
            self._background(self._start_head())
        elif isinstance(command, m.StartWorker):
            logical = self._protocol.nodes[command.rank].logical
            self._members.send(command.rank, "start_ray", address=None, head=self._cluster.address, logical=logical)
        elif isinstance(command, m.StartDriver):
            if self._job.ray:
                self._publisher.mark("ray_ready")
            self._background(self._run_driver(self._protocol.cycle))
        elif isinstance(command, m.EndDriver):
            self._driver.end(command.grace)
            self._guests.end(command.grace)
        elif isinstance(command, m.StopNode):
            self._stop_node(command.rank)
        elif isinstance(command, m.BeginCycle):
            self._begin_cycle()
        elif isinstance(command, m.Rejoin):
            self._welcome(command.rank)
        elif isinstance(command, m.Yield):
            self._background(self._yield(command.reason))
        else:
            self._concluded.set()

    async def _yield(self, reason: str) -> None:
        """To whoever is next: this node is excluded, and there is no driver that they would have to wait for."""
        self._publisher.phase(f"{self._identity.host} lets another node lead: {reason}")
        self._members.send_all("charter", **self._entitlement.without_lead().as_record())
        await self._members.dismiss("retire", reason=reason)
        self._concluded.set()

    def _stop_node(self, rank: int) -> None:
        """With what the node must know to decide about Ray's logs: how the run ended, and how long there is."""
        now, outcome = time.monotonic(), self._protocol.outcome
        ends = [when for when in (self._protocol.deadline, self._killed_at) if when is not None]
        left = min(ends, default=now) - now
        told = ending(rank, outcome, left, self._protocol.lead) if outcome else cycle_ending(rank)
        self._members.send(rank, "stop", **asdict(told), cycle=self._protocol.cycle)

    def _begin_cycle(self) -> None:
        """The driver and the Ray cluster of the cycle before are no more, or about to be."""
        self._background(self._keep_log(self._protocol.cycle - 1))
        self._driver = self._new_driver()
        self._cluster = Cluster(self._identity, self._job)
        self._publisher.cycle_begins()

    async def _keep_log(self, cycle: int) -> None:
        part = await self._off_loop(self._logs.over, cycle)
        if part is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._logs.keep, part)

    def _new_driver(self) -> Driver | Gang:
        """One process on this node, or a gang of them on all."""
        if self._job.procs_per_node is None:
            return Driver(self._identity.attempt.driver_log)
        gang = Gang(self._identity, self._job, self._members, self._protocol, self._own_address)
        gang.on_note = self._publisher.phase
        return gang

    async def _run_driver(self, cycle: int) -> None:
        await self._entitlement.entitled.wait()
        self._background(self._guests.serve(self._environment, self._job.stop_grace))
        self._stalling = None
        self._driver_left.clear()
        if self._job.stall_timeout is not None and self._job.procs_per_node is None:  # each node looks at its own
            attempt = self._identity.attempt
            self._stall = Stall(self._job.stall_timeout, attempt.driver_log, attempt.beat)
        log_start = await self._off_loop(self._logs.begin, cycle, self._protocol.restart_reason)
        self._publisher.driver_begins(self._job.command, log_start)
        await self._off_loop(self._headway.begin, cycle, time.monotonic())
        exit = await self._driver.run(list(self._job.command), self._environment({}), self._job.workdir)
        self._stall = None
        self._driver_left.set()
        self._publisher.driver_ends(exit.shell_code)
        await self._guests.close(self._job.stop_grace)  # the cluster under them is about to go
        if exit.shell_code and self._protocol.state is RunState.RUNNING and self._job.on_node_loss == RESTART:
            await self._members.all_answer()  # a silent host may be why the driver failed: then that is the reason
        with contextlib.suppress(asyncio.TimeoutError):  # what it said last; a filesystem that pauses holds nobody up
            await asyncio.wait_for(self._note_progress(), PROGRESS_S)
        self._driver_ended(exit, cycle)

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        """The driver's, and every guest's with what it was given besides."""
        given = {**given_variables(self._identity), **more}
        cycle, reason = self._protocol.cycle, self._protocol.restart_reason
        again = {"MUSTER_RESTART_REASON": reason} if cycle else {}
        return {**self._cluster.environment(job_environment(os.environ, given, self._identity, cycle)), **again}

    def _head_has_address(self, address: str, dashboard: int | None) -> None:
        self._cluster.address, self._cluster.dashboard = address, dashboard
        self._publisher.head_is_there(self._cluster.published(self._environment({})), self._cluster.dashboard_line())

    def _driver_ended(self, exit: Exit, cycle: int) -> None:
        if self._stalling is not None:
            self._feed(m.DriverStalled(self._stalling, cycle))  # its end is only what follows from that
        event = m.DriverEnded(exit.shell_code, str(exit), cycle)
        if exit.shell_code and self._protocol.state is RunState.RUNNING:  # else it was told to end
            node, log = self._driver.to_blame(self._protocol.lead)
            self._feed_failure(event, node, "driver", f"the driver {exit}", tail_of(log, 12))
        else:
            self._feed(event)

    async def _start_head(self) -> None:
        address = await self._own_address()
        self._members.send(self._protocol.lead, "start_ray", address=address, head=None, logical=0)

    async def _own_address(self) -> str:
        """One that another node has reached: only they can tell which of ours it is."""
        proven = await self._members.company(self._whereabouts.patience()) if self._job.step_nodes > 1 else []
        return self._whereabouts.of_the_head(proven)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        self.watch(asyncio.ensure_future(work))

    def _finished(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            say(f"the lead failed: {task.exception()!r}")
            reason, cycle = f"the lead failed: {task.exception()!r}", self._protocol.cycle
            self._feed(m.NodeFailed(self._protocol.lead, self._protocol.state.value, reason, cycle))
