"""The driver's life, cycle after cycle: started when it may be, watched, ended; and what is kept and told of it."""

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
from muster.agent.gang.gang import Gang
from muster.agent.job import Identity, Job
from muster.agent.leader.cycle_log import CycleLogs
from muster.agent.leader.driver import Driver
from muster.agent.leader.guests import Guests
from muster.agent.leader.log_tail import LogTails
from muster.agent.leader.progress import ProgressTracker
from muster.agent.leader.stall import StallDetector
from muster.agent.leader.status_publisher import StatusPublisher
from muster.agent.ray.cluster import RayCluster
from muster.election.membership import FENCE_S
from muster.lifecycle import events as m
from muster.lifecycle.config import RESTART
from muster.lifecycle.state_machine import RunStateMachine
from muster.lifecycle.states import RunState
from muster.process import Exit

UNKILLABLE_S = 5.0
ABORT_S = 3.0  # for a stalled driver to print its stacks
PROGRESS_S = 2.0
KEEP_LOG_S = 5.0  # the outcome does not wait longer for a copy of the last cycle's log
STACKS_S = 45.0  # for all nodes to write their stacks


@dataclass(frozen=True)
class LeaderContext:
    """What the driver's life takes place in: the leader's own parts."""

    identity: Identity
    job: Job
    protocol: RunStateMachine
    publisher: StatusPublisher
    members: Connections
    tails: LogTails
    off_loop: Callable[..., Awaitable[Any]]
    watch: Callable[[asyncio.Future[Any]], None]
    own_address: Callable[[], Awaitable[str]]
    feed: Callable[[m.Event], None]
    feed_failure: Callable[[m.Event, int, str, str, list[str]], None]
    services: Callable[[int], dict[str, str]]  # where they are, for a process on this node


class DriverSupervisor:
    """One driver, or gang, at a time; `cluster` is the Ray cluster under it."""

    def __init__(self, around: LeaderContext) -> None:
        self._around = around
        attempt = around.identity.attempt
        self.cluster = RayCluster(around.identity, around.job)
        self._fenced = 0.0  # when what lost nodes still ran has ended for sure
        self.driver = self._new_driver()
        self._guests = Guests(around.identity, around.publisher, around.off_loop, around.watch)
        self._logs, self._progress_tracker = CycleLogs(attempt), ProgressTracker(attempt.beat)
        self._stall: StallDetector | None = None  # while the driver runs, if it may not be silent for long
        self._stalling: str | None = None  # in words, once it has stalled
        self._left = asyncio.Event()

    def _new_driver(self) -> Driver | Gang:
        """One process on this node, or a gang of them on all."""
        around = self._around
        if around.job.procs_per_node is None:
            driver = Driver(around.identity.attempt.driver_log)
            driver.on_unended = lambda text: self.note_unended(around.identity.rank, text)
            return driver
        gang = Gang(
            around.identity, around.job, around.members, around.protocol, around.own_address, lambda: self._fenced
        )
        gang.on_note, gang.services = around.publisher.phase, around.services
        return gang

    def note_unended(self, rank: int, text: str) -> None:
        """Publish that a process of the driver, or of a gang, could not be ended on this node."""
        publisher, host = self._around.publisher, self._around.protocol.nodes[rank].host
        publisher.phase(f"{host}: {text}")
        publisher.event("unended", rank=rank, host=host, reason=text)

    def begin_cycle(self) -> None:
        """The driver and the Ray cluster of the cycle before are no more, or about to be."""
        around = self._around
        around.watch(asyncio.ensure_future(self._keep_log(around.protocol.cycle - 1)))
        self.driver = self._new_driver()
        self.cluster = RayCluster(around.identity, around.job)
        around.publisher.cycle_begins()

    async def run(self, cycle: int) -> None:
        """From the start of this cycle's driver to the word of its end."""
        around, job, attempt = self._around, self._around.job, self._around.identity.attempt
        around.watch(asyncio.ensure_future(self._guests.serve(self.environment, job.stop_grace)))
        self._stalling = None
        self._left.clear()
        if job.stall_timeout is not None and job.procs_per_node is None:  # of a gang each node looks at its own
            self._stall = StallDetector(job.stall_timeout, attempt.driver_log, attempt.beat)
        log_start = await around.off_loop(self._logs.begin, cycle, around.protocol.restart_reason)
        around.publisher.driver_begins(job.command, log_start)
        await around.off_loop(self._progress_tracker.begin, cycle, time.monotonic())
        env = await around.off_loop(self.environment, {})
        exit = await self.driver.run(list(job.command), env, job.workdir)
        self._stall = None
        self._left.set()
        around.publisher.driver_ends(exit.shell_code)
        await self._guests.close(job.stop_grace)  # the cluster under them is about to go
        if exit.shell_code and around.protocol.state is RunState.RUNNING and job.on_node_loss == RESTART:
            await around.members.all_answer()  # a silent host may be why it failed: then that is the reason
        if exit.shell_code:
            with contextlib.suppress(asyncio.TimeoutError):  # what it said last; a filesystem that pauses holds nobody
                await asyncio.wait_for(self._note_progress(), PROGRESS_S)
        self._ended(exit, cycle)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """The driver's, and every guest's with what it was given besides."""
        identity, protocol = self._around.identity, self._around.protocol
        given = {**given_variables(identity), **self._around.services(identity.rank), **more}
        again = {"MUSTER_RESTART_REASON": protocol.restart_reason} if protocol.cycle else {}
        return {**self.cluster.environment(job_environment(os.environ, given, identity, protocol.cycle)), **again}

    def head_has_address(self, address: str, dashboard: int | None) -> None:
        cluster = self.cluster
        cluster.address, cluster.dashboard = address, dashboard
        self._around.publisher.head_is_there(cluster.published(self.environment({})), cluster.dashboard_line())

    def lost(self, rank: int, last_heard: float) -> None:
        """A node is lost: what it ran of a gang may live on until it is fenced, and the next gang waits for that."""
        if isinstance(self.driver, Gang):
            self.driver.lost(rank)
            self._fenced = max(self._fenced, last_heard + FENCE_S)

    def beaten(self, step: int | None) -> None:
        """A process of a gang has called muster.beat()."""
        self._progress_tracker.told(step)

    def signal(self, signum: int) -> None:
        self.driver.signal(signum)
        self._guests.signal(signum)

    def end(self, grace: float) -> None:
        """TERM now, KILL after the grace."""
        self.driver.end(grace)
        self._guests.end(grace)

    async def close(self) -> None:
        """At the end of everything. An unkillable driver must not hold it up."""
        closing = asyncio.gather(self.driver.close(), self._guests.close(0.0), return_exceptions=True)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(closing, UNKILLABLE_S)

    async def keep_last_log(self) -> None:
        """Where there was more than one cycle."""
        if cycle := self._around.protocol.cycle:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._keep_log(cycle), KEEP_LOG_S)

    async def look(self) -> None:
        """What the driver does not tell by ending: whether it gets on, or has stalled."""
        await self._note_progress()
        if self._stall is not None and await self._around.off_loop(self._stall.look, time.monotonic()):
            self._around.watch(asyncio.ensure_future(self._stalled(self._stall.timeout)))
            self._stall = None

    async def _note_progress(self) -> None:
        """For the rule against cycles that lead nowhere."""
        if self._around.protocol.driver_running and not self._around.protocol.progressed:
            cycle = await self._around.off_loop(self._progress_tracker.look, time.monotonic())
            if cycle is not None:
                self._around.feed(m.Progress(cycle))

    async def _stalled(self, timeout: float) -> None:
        """What every process is doing is kept before anything is ended."""
        around = self._around
        reason = f"the driver stalled: no output and no muster.beat() for {timeout:g} s; see logs/stacks-*.txt"
        around.publisher.phase(reason)
        around.publisher.event("stalled", seconds=timeout)
        cycle = around.protocol.cycle
        seen = await around.members.ask("stacks", STACKS_S)
        if around.protocol.cycle != cycle or self._left.is_set():
            return  # it has ended meanwhile, by itself or with its cycle
        self._stalling = reason
        if not any(seen):
            self.driver.signal(signal.SIGABRT)  # Python's own fault handler then prints where the driver is
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._left.wait(), ABORT_S)
        around.feed(m.DriverStalled(reason, cycle))

    async def _keep_log(self, cycle: int) -> None:
        part = await self._around.off_loop(self._logs.over, cycle)
        if part is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._logs.keep, part)

    def _ended(self, exit: Exit, cycle: int) -> None:
        around = self._around
        if self._stalling is not None:
            around.feed(m.DriverStalled(self._stalling, cycle))  # its end is only what follows from that
        event = m.DriverEnded(exit.shell_code, str(exit), cycle)
        if exit.shell_code and around.protocol.state is RunState.RUNNING:  # else it was told to end
            node, log = self.driver.failure_source(around.protocol.leader)
            around.feed_failure(event, node, "driver", f"the driver {exit}", around.tails.of(log))
        else:
            around.feed(event)
