"""The leader's side of a gang: processes on every active node instead of one driver, started and ended together.

state      leaves on                                                            to
waiting    run                                                                  running
running    a rank failed; end                                                   ending
running    a rank hangs                                                         dumping: stacks are written
running    every node has sent ProcessesEnded                                   over: exit code 0
dumping    every hung rank has ended with 0 when the stacks are written         running
dumping    the stacks are written; end                                          ending
ending     every node has sent ProcessesEnded, is lost, or has timed out        over: the first failure's code
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from dataclasses import dataclass

from muster.agent.control.channel import HEARTBEAT_TIMEOUT_S
from muster.agent.control.messages import (
    DumpStacks,
    EndProcesses,
    HungRankEnded,
    ProcessesEnded,
    RankFailed,
    SignalProcesses,
    StartProcesses,
)
from muster.agent.gang.master_port import MasterPort, take_master_port
from muster.agent.gang_part import GangPart
from muster.agent.leader.context import LeaderContext
from muster.agent.leader.driver import GangReport, RunningDriver
from muster.agent.leader.services import LeaderServices
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FAILURE_GRACE_S
from muster.lifecycle.end_reasons import listed
from muster.process import Exit

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = HEARTBEAT_TIMEOUT_S + 3.0  # after the grace: by then the heartbeat timeout has detected lost nodes
STACKS_TIMEOUT_S = 45.0  # for all nodes to write their stacks
ABORT_TIMEOUT_S = 3.0  # for processes to print their own stacks


@dataclass(frozen=True)
class RankFailure:
    """Why a gang failed, and the resulting exit code."""

    node: int
    reason: str
    code: int
    rank: int | None = None  # the process with the relevant log
    since: float = 0.0  # of a hang: loop time of the last output or beat


@dataclass(frozen=True)
class GangExit(Exit):
    """The exit of a failed gang: code and description of the first failure."""

    failure: str = ""

    def __str__(self) -> str:
        return f"failed: {self.failure}"


class Gang(RunningDriver):
    """Processes on all active nodes, under the interface of a driver."""

    def __init__(self, context: LeaderContext, services: LeaderServices, fenced_at: float) -> None:
        """`fenced_at`: the monotonic time until which processes of an older gang may run on a lost node."""
        self._context, self._services, self._fenced_at = context, services, fenced_at
        self._identity, self._job, self._protocol = context.identity, context.job, context.machine
        self._connections = context.connections
        self._cycle = -1  # until it runs
        self._waiting: set[int] = set()  # nodes that have not sent ProcessesEnded
        self._over, self._cancelled = asyncio.Event(), asyncio.Event()
        self._grace: float | None = None  # set by `end`
        self._failure: RankFailure | None = None  # the first one, unless a rank hung before it
        self._hung: dict[int, RankFailure] = {}  # by rank: hung before any failure, and not ended with 0 since
        self._dumping: asyncio.Future[None] | None = None
        self._stuck_hosts: list[str] = []  # timed out without ProcessesEnded
        self._port: MasterPort | None = None

    async def run(self, command: list[str], env: dict[str, str], cwd: str) -> Exit:
        """Run the gang. Nodes read command, directory and most of `env` themselves, since these may be secret."""
        await self._wait_until_fenced()
        try:
            address = await self._context.own_address()
            self._port = take_master_port(self._identity, self._job, self._protocol.cycle)
        except OSError as error:
            return GangExit(code=INFRASTRUCTURE_FAILED, failure=str(error))
        if self._grace is not None:  # ended before the start
            self._port.release()
            return Exit(signal=signal.SIGTERM)
        self._start(env, address, self._port.number)
        await self._over.wait()
        self._port.release()
        return self._exit()

    async def _wait_until_fenced(self) -> None:
        """Wait until the agent of a lost node, which fences itself, must have ended its ranks."""
        left = self._fenced_at - time.monotonic()
        if left > 0:
            self._context.publisher.phase(
                f"the next gang starts in {left:.0f} s, when the lost node has ended its processes for sure"
            )
        while left > 0 and not self._cancelled.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._cancelled.wait(), left)
            left = self._fenced_at - time.monotonic()

    def _start(self, env: dict[str, str], address: str, port: int) -> None:
        active = [node for node in self._protocol.nodes if node.rank is not None]
        self._cycle, self._waiting = self._protocol.cycle, {node.node_index for node in active}
        ray, reason = env["RAY_ADDRESS"] if self._job.ray else None, env.get("MUSTER_RESTART_REASON")
        for node in active:
            assert node.rank is not None and self._job.procs_per_node is not None
            part = GangPart(self._cycle, node.rank, len(active), self._job.procs_per_node, address, port)
            services = self._services.environment(node.node_index)
            self._connections.send(node.node_index, StartProcesses(part, ray, reason, services))

    @property
    def _cause(self) -> RankFailure | None:
        """The rank that stopped first: ranks that wait for a hung rank stop writing, or fail, too."""
        return min(self._hung.values(), key=lambda hung: hung.since, default=self._failure)

    def _exit(self) -> Exit:
        cause = self._cause
        if cause is None and not self._stuck_hosts:
            return Exit(code=0)
        stuck = [f"processes on {listed(self._stuck_hosts)} could not be ended"] if self._stuck_hosts else []
        reasons = [cause.reason] if cause is not None else []
        code = cause.code if cause is not None else INFRASTRUCTURE_FAILED
        return GangExit(code=code, failure="; ".join(reasons + stuck))

    def failure_source(self, leader: int) -> tuple[int, str]:
        """Return the node and the log that explain the failure."""
        attempt, cause = self._identity.attempt, self._cause
        if cause is None or cause.rank is None:
            return leader, attempt.driver_log
        return cause.node, attempt.rank_output(cause.rank, self._cycle)

    # -- reports ------------------------------------------------------------------------------------------------

    def on_message(self, node_index: int, report: GangReport) -> None:
        """Handle a node's report on its processes; reports of another cycle are ignored."""
        if report.cycle != self._cycle or node_index not in self._waiting:
            return
        if isinstance(report, ProcessesEnded):
            self._node_done(node_index)
        elif isinstance(report, HungRankEnded):
            if self._grace is None:  # else it was asked to end
                self._hung.pop(report.rank, None)
        else:
            self._on_rank_failed(node_index, report)

    def _on_rank_failed(self, node: int, report: RankFailed) -> None:
        reason = f"rank {report.rank} on {self._protocol.nodes[node].host} {report.how}"
        if report.silent is None:
            self._fail(RankFailure(node, reason, report.exit_code, report.rank))
        elif self._failure is None:
            since = asyncio.get_running_loop().time() - report.silent
            reason = f"{reason}; see logs/stacks-*.txt"
            self._hung[report.rank] = RankFailure(node, reason, report.exit_code, report.rank, since)
            if self._dumping is None and self._grace is None:
                self._dumping = self._context.inbox.spawn(self._dump_stacks(reason))

    def on_node_lost(self, node_index: int, fenced_at: float) -> None:
        """Stop waiting for a lost node. The state machine decides what happens to the other nodes."""
        self._fenced_at = max(self._fenced_at, fenced_at)
        if node_index in self._waiting:
            lost = RankFailure(node_index, f"{self._protocol.nodes[node_index].host} was lost", INFRASTRUCTURE_FAILED)
            self._failure = self._failure or lost
            self._node_done(node_index)

    def _fail(self, failure: RankFailure) -> None:
        """Record the first failure and end the gang: the other ranks would only wait for the failed one.

        While stacks are written, the end waits for them.
        """
        if self._failure is None:
            self._failure = failure
            if self._dumping is None and self._grace is None:
                self._end_failed()

    def _end_failed(self) -> None:
        self.end(min(FAILURE_GRACE_S, self._job.stop_grace))

    async def _dump_stacks(self, reason: str) -> None:
        """Write the stacks of all processes before ending them, as for a stalled driver."""
        self._context.publisher.phase(reason)
        try:
            dumped = any(await self._connections.ask(DumpStacks(), STACKS_TIMEOUT_S))
            if self._cause is not None and not dumped:
                self.signal(signal.SIGABRT)  # Python's fault handler prints the stack into the process's log
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._over.wait(), ABORT_TIMEOUT_S)
        finally:
            self._dumping = None
            if self._cause is not None:
                self._end_failed()

    def _node_done(self, node: int) -> None:
        self._waiting.discard(node)
        if not self._waiting:
            self.completed = self._grace is None
            self._over.set()

    # -- control ------------------------------------------------------------------------------------------------

    def signal(self, signum: int) -> None:
        """Send the signal to every process of every node."""
        for node in self._waiting:
            self._connections.send(node, SignalProcesses(signum))

    def end(self, grace: float) -> None:
        """Send TERM now and KILL after `grace` seconds; `run` then returns. A later call may only shorten the grace."""
        self._grace = grace if self._grace is None else min(grace, self._grace)
        self._cancelled.set()
        for node in self._waiting:
            self._connections.send(node, EndProcesses(self._grace))
        if self._waiting:
            asyncio.get_running_loop().call_later(self._grace + STOP_TIMEOUT_S, self._give_up)

    async def close(self, grace: float = 0.0) -> None:
        """End the gang; return when it is over."""
        self.end(grace)
        if self._waiting:
            await self._over.wait()

    def _give_up(self) -> None:
        """Stop waiting for processes that KILL does not end, such as one blocked in a kernel driver."""
        if self._waiting:
            self._stuck_hosts = [self._protocol.nodes[node].host for node in sorted(self._waiting)]
            logger.warning("processes on %s could not be ended", listed(self._stuck_hosts))
            self._waiting.clear()
            self._over.set()
