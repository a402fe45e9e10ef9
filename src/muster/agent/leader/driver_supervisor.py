"""The driver's lifecycle in every cycle: start, progress and stall checks, end, and what is published of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from muster.agent.control.connections import Connections
from muster.agent.environment import given_variables, job_environment
from muster.agent.health.progress import ProgressTracker
from muster.agent.health.stall import StallDetector
from muster.agent.job import Identity, Job
from muster.agent.leader.cycle_log import CycleLogs
from muster.agent.leader.driver import Driver
from muster.agent.leader.gang import Gang
from muster.agent.leader.guests import Guests
from muster.agent.leader.log_tail import LogTails
from muster.agent.leader.status_publisher import StatusPublisher
from muster.agent.ray.cluster import RayCluster
from muster.election.timing import FENCE_S
from muster.lifecycle import events as m
from muster.lifecycle.config import RESTART
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState
from muster.process import Exit

CLOSE_TIMEOUT_S = 5.0  # an unkillable driver must not delay the outcome for longer
ABORT_TIMEOUT_S = 3.0  # for a stalled driver to print its stacks
PROGRESS_READ_TIMEOUT_S = 2.0  # a filesystem that hangs must not delay the end of the driver for longer
LOG_COPY_TIMEOUT_S = 5.0  # the outcome does not wait longer for a copy of the last cycle's log
STACKS_TIMEOUT_S = 45.0  # for all nodes to write their stacks


@dataclass(frozen=True)
class LeaderContext:
    """The parts of the leader that the driver's lifecycle uses."""

    identity: Identity
    job: Job
    machine: RunStateMachine
    publisher: StatusPublisher
    connections: Connections
    tails: LogTails
    off_loop: Callable[..., Awaitable[Any]]
    watch: Callable[[asyncio.Future[Any]], None]
    own_address: Callable[[], Awaitable[str]]
    feed: Callable[[m.Event], None]
    feed_failure: Callable[[m.Event, int, str, str, list[str]], None]
    services: Callable[[int], dict[str, str]]  # environment variables of the services, for a node


class DriverSupervisor:
    """Runs one driver, or gang, at a time; `cluster` is its Ray cluster."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context
        attempt = context.identity.attempt
        self.cluster = RayCluster(context.identity, context.job)
        self._fenced = 0.0  # when the processes of all lost nodes have ended
        self.driver = self._new_driver()
        self._guests = Guests(context.identity, context.publisher, context.off_loop, context.watch)
        self._logs, self._progress_tracker = CycleLogs(attempt), ProgressTracker(attempt.beat)
        self._stall: StallDetector | None = None  # while the driver runs, if the job has a stall timeout
        self._stall_reason: str | None = None  # once it has stalled
        self._driver_ended = asyncio.Event()

    def _new_driver(self) -> Driver | Gang:
        """Return a driver on this node, or a gang on all nodes."""
        context, identity, job = self._context, self._context.identity, self._context.job
        if job.procs_per_node is None:
            driver = Driver(identity.attempt.driver_log)
            driver.on_unended = lambda text: self.note_unended(identity.rank, text)
            return driver
        gang = Gang(identity, job, context.connections, context.machine, context.own_address, lambda: self._fenced)
        gang.on_note, gang.services = context.publisher.phase, context.services
        return gang

    def note_unended(self, rank: int, text: str) -> None:
        """Publish that a process of the driver, or of a gang, could not be ended on a node."""
        publisher, host = self._context.publisher, self._context.machine.nodes[rank].host
        publisher.phase(f"{host}: {text}")
        publisher.event("unended", rank=rank, host=host, reason=text)

    def begin_cycle(self) -> None:
        """Replace the driver and the Ray cluster of the previous cycle, which have ended or are ending."""
        context = self._context
        context.watch(asyncio.ensure_future(self._copy_log(context.machine.cycle - 1)))
        self.driver = self._new_driver()
        self.cluster = RayCluster(context.identity, context.job)
        context.publisher.cycle_begins()

    async def run(self, cycle: int) -> None:
        """Run this cycle's driver and report its end."""
        context, job, attempt = self._context, self._context.job, self._context.identity.attempt
        context.watch(asyncio.ensure_future(self._guests.serve(self.environment, job.stop_grace)))
        self._stall_reason = None
        self._driver_ended.clear()
        if job.stall_timeout is not None and job.procs_per_node is None:  # in a gang each node checks its own processes
            self._stall = StallDetector(job.stall_timeout, attempt.driver_log, attempt.beat)
        log_start = await context.off_loop(self._logs.begin, cycle, context.machine.restart_reason)
        context.publisher.driver_begins(job.command, log_start)
        await context.off_loop(self._progress_tracker.begin, cycle, time.monotonic())
        env = await context.off_loop(self.environment, {})
        exit = await self.driver.run(list(job.command), env, job.workdir)
        self._stall = None
        self._driver_ended.set()
        context.publisher.driver_ends(exit.shell_code)
        await self._guests.close(job.stop_grace)  # before their cluster ends
        if exit.shell_code and context.machine.state is RunState.RUNNING and job.on_node_loss == RESTART:
            await context.connections.wait_for_all_answers()  # a lost node may be the cause: then it is the reason
        if exit.shell_code:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._check_progress(), PROGRESS_READ_TIMEOUT_S)
        self._report_end(exit, cycle)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """Return the environment of the driver, or of a guest with `more` variables."""
        identity, machine = self._context.identity, self._context.machine
        given = {**given_variables(identity), **self._context.services(identity.rank), **more}
        restart = {"MUSTER_RESTART_REASON": machine.restart_reason} if machine.cycle else {}
        return {**self.cluster.environment(job_environment(os.environ, given, identity, machine.cycle)), **restart}

    def on_head_address(self, address: str, dashboard: int | None) -> None:
        cluster = self.cluster
        cluster.address, cluster.dashboard = address, dashboard
        self._context.publisher.head_ready(cluster.status(self.environment({})), cluster.dashboard_line())

    def on_node_lost(self, rank: int, last_heard: float) -> None:
        """Note when the node's gang processes are fenced: they may run until then, and the next gang waits for it."""
        if isinstance(self.driver, Gang):
            self.driver.on_node_lost(rank)
            self._fenced = max(self._fenced, last_heard + FENCE_S)

    def on_beat(self, step: int | None) -> None:
        """Handle the report that a process of a gang has called muster.beat()."""
        self._progress_tracker.on_beat(step)

    def signal(self, signum: int) -> None:
        self.driver.signal(signum)
        self._guests.signal(signum)

    def end(self, grace: float) -> None:
        """Send SIGTERM now and SIGKILL after `grace` seconds."""
        self.driver.end(grace)
        self._guests.end(grace)

    async def close(self) -> None:
        """End the driver and the guests at the end of the run."""
        closing = asyncio.gather(self.driver.close(), self._guests.close(0.0), return_exceptions=True)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(closing, CLOSE_TIMEOUT_S)

    async def copy_last_log(self) -> None:
        """Copy the last cycle's part of the log if the run had several cycles."""
        if cycle := self._context.machine.cycle:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._copy_log(cycle), LOG_COPY_TIMEOUT_S)

    async def poll(self) -> None:
        """Check whether the driver makes progress or has stalled."""
        await self._check_progress()
        if self._stall is not None and await self._context.off_loop(self._stall.poll, time.monotonic()):
            self._context.watch(asyncio.ensure_future(self._on_stall(self._stall.timeout)))
            self._stall = None

    async def _check_progress(self) -> None:
        """Report the cycle's first progress, for the limit of cycles without progress."""
        if self._context.machine.driver_running and not self._context.machine.progressed:
            cycle = await self._context.off_loop(self._progress_tracker.poll, time.monotonic())
            if cycle is not None:
                self._context.feed(m.Progress(cycle))

    async def _on_stall(self, timeout: float) -> None:
        """Write the stacks of all processes, then report the stall, which ends the driver."""
        context = self._context
        reason = f"the driver stalled: no output and no muster.beat() for {timeout:g} s; see logs/stacks-*.txt"
        context.publisher.phase(reason)
        context.publisher.event("stalled", seconds=timeout)
        cycle = context.machine.cycle
        dumped = await context.connections.ask("stacks", STACKS_TIMEOUT_S)
        if context.machine.cycle != cycle or self._driver_ended.is_set():
            return  # the driver has ended meanwhile
        self._stall_reason = reason
        if not any(dumped):
            self.driver.signal(signal.SIGABRT)  # Python's fault handler then prints the driver's stacks
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._driver_ended.wait(), ABORT_TIMEOUT_S)
        context.feed(m.DriverStalled(reason, cycle))

    async def _copy_log(self, cycle: int) -> None:
        part = await self._context.off_loop(self._logs.end, cycle)
        if part is not None:
            await asyncio.to_thread(self._logs.copy, part)

    def _report_end(self, exit: Exit, cycle: int) -> None:
        context = self._context
        if self._stall_reason is not None:
            context.feed(m.DriverStalled(self._stall_reason, cycle))  # the stall is the cause of its end
        event = m.DriverEnded(exit.shell_code, str(exit), cycle)
        if exit.shell_code and context.machine.state is RunState.RUNNING:  # else it was asked to end
            node, log = self.driver.failure_source(context.machine.leader)
            context.feed_failure(event, node, "driver", f"the driver {exit}", context.tails.read(log))
        else:
            context.feed(event)
