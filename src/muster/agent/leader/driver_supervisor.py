"""The driver's lifecycle in every cycle: start, progress and stall checks, end, and what is published of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from muster.agent.control.connections import AgentMessage
from muster.agent.control.messages import DumpStacks, GcsRestarted
from muster.agent.environment import control_directory, given_variables, job_environment
from muster.agent.event_loop import running_now
from muster.agent.health.progress import ProgressTracker
from muster.agent.health.stall import StallDetector
from muster.agent.job import Identity
from muster.agent.leader.context import LeaderContext
from muster.agent.leader.driver import Driver, RunningDriver, mark_cycle
from muster.agent.leader.gang import Gang
from muster.agent.leader.guests import Guests
from muster.agent.leader.inbox import Failure, MachineEvent
from muster.agent.leader.services import LeaderServices
from muster.agent.leader.workload_requests import exit_code_request
from muster.agent.ray.cluster import RayCluster
from muster.agent.ray.nemo_rl import affinity_variable, driver_variables
from muster.election.timing import FENCE_S
from muster.lifecycle import events as m
from muster.lifecycle.config import RESTART
from muster.lifecycle.roles import RunNode
from muster.lifecycle.states import RunState
from muster.process import Exit, Log

CLOSE_TIMEOUT_S = 5.0  # an unkillable driver must not delay the outcome for longer
ABORT_TIMEOUT_S = 3.0  # for a stalled driver to print its stacks
PROGRESS_READ_TIMEOUT_S = 2.0  # a filesystem that hangs must not delay the end of the driver for longer
STACKS_TIMEOUT_S = 45.0  # for all nodes to write their stacks


class DriverSupervisor:
    """Runs one driver, or gang, at a time; `cluster` is its Ray cluster."""

    def __init__(self, context: LeaderContext, services: LeaderServices) -> None:
        self._context, self._services = context, services
        attempt = context.identity.attempt
        self.cluster = RayCluster(context.identity, context.job)
        self._fenced_at = 0.0  # when the processes of all lost nodes have ended
        self.driver = self._new_driver()
        self._guests = Guests(context)
        self._progress_tracker = ProgressTracker(attempt.beat)
        self._stall: StallDetector | None = None  # while the driver runs, if the job has a stall timeout
        self._stall_reason: str | None = None  # once it has stalled
        self._driver_ended = asyncio.Event()

    def _new_driver(self) -> RunningDriver:
        """Return a driver on this node, or a gang on all nodes."""
        context, identity = self._context, self._context.identity
        if context.job.procs_per_node is None:
            log = Log(identity.attempt.driver_log, context.job.log_limit)
            directories = [control_directory(identity, context.machine.cycle)]
            return Driver(log, context.inbox, identity.node_index, directories)
        return Gang(context, self._services, self._fenced_at)

    def note_unended(self, node_index: int, text: str) -> None:
        """Publish that a process of the driver, or of a gang, could not be ended on a node."""
        publisher, host = self._context.publisher, self._context.machine.nodes[node_index].host
        publisher.phase(f"{host}: {text}")
        publisher.event("unended", rank=node_index, host=host, reason=text)

    def begin_cycle(self, command: m.BeginCycle) -> None:
        """Replace the driver and the Ray cluster of the previous cycle, which have ended or are ending.

        If a node was lost before the driver ran, only its scope is open.
        """
        context = self._context
        context.inbox.watch(asyncio.gather(self.driver.close(), return_exceptions=True))
        self.driver = self._new_driver()
        self.cluster = RayCluster(context.identity, context.job)
        context.publisher.cycle_begins(command.cycle, command.reason)

    async def run(self, cycle: int) -> None:
        """Run this cycle's driver and report its end."""
        context, job, attempt = self._context, self._context.job, self._context.identity.attempt
        context.inbox.spawn(self._guests.serve(self.environment, job.stop_grace))
        self._stall_reason = None
        self._driver_ended.clear()
        if job.stall_timeout is not None and job.procs_per_node is None:  # in a gang each node checks its own processes
            self._stall = StallDetector(job.stall_timeout, attempt.driver_log, attempt.beat)
        log_start = await context.files.run(mark_cycle, attempt.driver_log, cycle, context.machine.restart_reason)
        context.publisher.driver_begins(job.command, log_start)
        await context.files.run(self._progress_tracker.begin, cycle, running_now())
        env = await self.environment({})
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

    async def environment(self, more: dict[str, str]) -> dict[str, str]:
        """Return the environment of the driver, or of a guest with `more` variables."""
        context, machine = self._context, self._context.machine
        restart = {"MUSTER_RESTART_REASON": machine.restart_reason} if machine.cycle else {}
        more = {**self._services.environment(context.identity.node_index), **more}
        head = None if context.identity.local else context.identity.host
        usual = {
            **driver_variables(context.publisher.timings, head),
            **affinity_variable(context.job.gpu_affinity_file),
        }
        identity, arguments = context.identity, (self.cluster, machine.cycle, usual, more)
        env = await context.files.retried(identity.run.env, _read_environment, identity, *arguments)
        return {**env, **restart}

    def on_head_address(self, address: str, dashboard: int | None) -> None:
        cluster = self.cluster
        cluster.address, cluster.dashboard = address, dashboard
        self._context.inbox.spawn(self._publish_head(cluster))

    async def _publish_head(self, cluster: RayCluster) -> None:
        env = await self.environment({})
        if cluster is self.cluster:
            self._context.publisher.head_ready(cluster.status(env), cluster.dashboard_line())

    def on_gcs_restarted(self, node: RunNode, message: GcsRestarted) -> None:
        """Publish a restart of Ray's control service, which drivers and actors have survived."""
        self.cluster.gcs_restarts = message.restarts
        self._context.publisher.gcs_restarted(node, message.restarts, message.reason, message.seconds)

    def on_node_lost(self, node_index: int, last_heard: float) -> None:
        """Note when the node's processes are fenced: they may run until then, and the next gang waits for it."""
        self._fenced_at = max(self._fenced_at, last_heard + FENCE_S)
        self.driver.on_node_lost(node_index, self._fenced_at)

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

    async def poll(self) -> None:
        """Check whether the driver makes progress or has stalled."""
        await self._check_progress()
        if self._stall is not None and await self._context.files.run(self._stall.poll, running_now()):
            self._context.inbox.spawn(self._on_stall(self._stall.timeout))
            self._stall = None

    async def _check_progress(self) -> None:
        """Report the cycle's first progress, for the limit of cycles without progress."""
        if self._context.machine.driver_running and not self._context.machine.progressed:
            cycle = await self._context.files.run(self._progress_tracker.poll, running_now())
            if cycle is not None:
                self._context.inbox.post(MachineEvent(m.Progress(cycle)))

    async def _on_stall(self, timeout: float) -> None:
        """Write the stacks of all processes, then report the stall, which ends the driver."""
        context = self._context
        reason = f"the driver stalled: no output and no muster.beat() for {timeout:g} s; see logs/stacks-*.txt"
        context.publisher.phase(reason)
        context.publisher.event("stalled", seconds=timeout)
        cycle = context.machine.cycle
        dumped = await context.connections.ask(DumpStacks(), STACKS_TIMEOUT_S)
        if context.machine.cycle != cycle or self._driver_ended.is_set():
            return  # the driver has ended meanwhile
        self._stall_reason = reason
        if not any(dumped):
            self.driver.signal(signal.SIGABRT)  # Python's fault handler then prints the driver's stacks
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._driver_ended.wait(), ABORT_TIMEOUT_S)
        context.inbox.post(MachineEvent(m.DriverStalled(reason, cycle)))

    def _report_end(self, exit: Exit, cycle: int) -> None:
        context, driver = self._context, self.driver
        if self._stall_reason is not None:
            context.inbox.post(MachineEvent(m.DriverStalled(self._stall_reason, cycle)))  # the cause of its end
        elif context.job.control_exit_codes and context.machine.state is RunState.RUNNING:
            request = exit_code_request(exit.shell_code, f"the driver {exit}", cycle)
            if request is not None:
                context.inbox.post(AgentMessage(driver.failure_source(context.machine.leader)[0], request))
        event = m.DriverEnded(exit.shell_code, str(exit), cycle, completed=driver.completed)
        if exit.shell_code:
            node_index, log = driver.failure_source(context.machine.leader)
            context.inbox.post(Failure(event, node_index, "driver", f"the driver {exit}", log))
        else:
            context.inbox.post(MachineEvent(event))


def _read_environment(
    identity: Identity, cluster: RayCluster, cycle: int, usual: dict[str, str], more: dict[str, str]
) -> dict[str, str]:
    """Return the driver's environment; --env replaces the `usual` variables."""
    given = {**usual, **given_variables(identity), **more}
    return cluster.environment(job_environment(os.environ, given, identity, cycle))
