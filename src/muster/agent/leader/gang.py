"""The leader's side of a gang: processes on every active node instead of one driver, started and ended together.

state      leaves on                                                            to
waiting    run                                                                  running
running    a rank failed; a rank hung and the stacks are written; end           ending
running    every node has sent procs_ended                                      over: exit code 0
ending     every node has sent procs_ended, is lost, or has timed out           over: the first failure's code
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from muster.agent.control.channel import HEARTBEAT_TIMEOUT_S
from muster.agent.control.connections import Connections
from muster.agent.gang.gang_environment import GangPart
from muster.agent.gang.log_mirror import LogMirror
from muster.agent.gang.master_port import MasterPort, take_master_port
from muster.agent.job import Identity, Job
from muster.exit_codes import INFRASTRUCTURE_FAILED
from muster.lifecycle.config import FAILURE_GRACE_S
from muster.lifecycle.end_reasons import listed
from muster.lifecycle.state_machine import RunStateMachine
from muster.process import Exit

logger = logging.getLogger(__name__)

MIRROR_INTERVAL_S = 0.2  # how often rank 0's output is copied to the driver's log
STOP_TIMEOUT_S = HEARTBEAT_TIMEOUT_S + 3.0  # after the grace: by then the heartbeat timeout has detected lost nodes
STACKS_TIMEOUT_S = 45.0  # for all nodes to write their stacks
ABORT_TIMEOUT_S = 3.0  # for processes to print their own stacks
GANG_REPORTS = ("proc_failed", "procs_ended")


@dataclass(frozen=True)
class RankFailure:
    """Why a gang failed, and the resulting exit code."""

    node: int
    reason: str
    code: int
    rank: int | None = None  # the process with the relevant log
    since: float | None = None  # of a hang: loop time of the last output or beat


@dataclass(frozen=True)
class GangExit(Exit):
    """The exit of a failed gang: code and description of the first failure."""

    failure: str = ""

    def __str__(self) -> str:
        return f"failed: {self.failure}"


class Gang:
    """A gang with the interface of a `Driver`."""

    def __init__(
        self,
        identity: Identity,
        job: Job,
        connections: Connections,
        protocol: RunStateMachine,
        address: Callable[[], Awaitable[str]],
        fenced_at: Callable[[], float],
    ) -> None:
        """`address` returns an address of the leader that other nodes have reached; `fenced_at` the monotonic time
        until which processes of an older gang may run on a lost node."""
        self._identity, self._job, self._connections, self._protocol = identity, job, connections, protocol
        self._address, self._fenced_at = address, fenced_at
        self._cycle = -1  # until it runs
        self._waiting: set[int] = set()  # nodes that have not sent procs_ended
        self._over, self._cancelled = asyncio.Event(), asyncio.Event()
        self._grace: float | None = None  # set by `end`
        self._failure: RankFailure | None = None
        self._stuck_hosts: list[str] = []  # timed out without procs_ended
        self._port: MasterPort | None = None
        self._dump_task: asyncio.Future[None] | None = None
        self.on_note: Callable[[str], None] = lambda text: None
        self.services: Callable[[int], dict[str, str]] = lambda node: {}  # endpoint variables for processes on a node

    async def run(self, command: list[str], env: dict[str, str], cwd: str) -> Exit:
        """Run the gang. Nodes read command, directory and most of `env` themselves, since these may be secret."""
        await self._wait_until_fenced()
        try:
            address = await self._address()
            self._port = take_master_port(self._identity, self._job, self._protocol.cycle)
        except OSError as error:
            return GangExit(code=INFRASTRUCTURE_FAILED, failure=str(error))
        if self._grace is not None:  # ended before the start
            self._port.release()
            return Exit(signal=signal.SIGTERM)
        self._start(env, address, self._port.number)
        await self._mirror_output()
        self._port.release()
        return self._exit()

    async def _wait_until_fenced(self) -> None:
        """Wait until the agent of a lost node, which fences itself, must have ended its ranks."""
        left = self._fenced_at() - time.monotonic()
        if left > 0:
            self.on_note(f"the next gang starts in {left:.0f} s, when the lost node has ended its processes for sure")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._cancelled.wait(), left)

    def _start(self, env: dict[str, str], address: str, port: int) -> None:
        active = [node for node in self._protocol.nodes if node.logical is not None]
        self._cycle, self._waiting = self._protocol.cycle, {node.rank for node in active}
        common = {"ray": env["RAY_ADDRESS"] if self._job.ray else None, "reason": env.get("MUSTER_RESTART_REASON")}
        for node in active:
            assert node.logical is not None and self._job.procs_per_node is not None
            part = GangPart(self._cycle, node.logical, len(active), self._job.procs_per_node, address, port)
            services = self.services(node.rank)
            self._connections.send(node.rank, "start_procs", part=asdict(part), services=services, **common)

    async def _mirror_output(self) -> None:
        """Copy rank 0's output to the driver's log until the gang is over and the copy is complete."""
        attempt, loop = self._identity.attempt, asyncio.get_running_loop()
        mirror = LogMirror(attempt.rank_log(0, self._cycle), attempt.driver_log)
        while True:
            last = self._over.is_set()
            try:
                await loop.run_in_executor(None, mirror.copy)
            except OSError as error:  # on a full disk output is missing from the driver's log; the run continues
                logger.warning("rank 0's output could not be copied: %s", error)
            if last:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), MIRROR_INTERVAL_S)

    def _exit(self) -> Exit:
        if self._failure is None and not self._stuck_hosts:
            return Exit(code=0)
        stuck = [f"processes on {listed(self._stuck_hosts)} could not be ended"] if self._stuck_hosts else []
        reasons = [self._failure.reason] if self._failure is not None else []
        code = self._failure.code if self._failure is not None else INFRASTRUCTURE_FAILED
        return GangExit(code=code, failure="; ".join(reasons + stuck))

    def failure_source(self, leader: int) -> tuple[int, str]:
        """Return the node and the log that explain the failure."""
        attempt = self._identity.attempt
        if self._failure is None or self._failure.rank is None:
            return leader, attempt.driver_log
        return self._failure.node, attempt.rank_log(self._failure.rank, self._cycle)

    # -- reports ------------------------------------------------------------------------------------------------

    def on_message(self, node: int, report: dict[str, Any]) -> None:
        """Handle a node's report on its processes; reports of another cycle are ignored."""
        if report["cycle"] != self._cycle or node not in self._waiting:
            return
        if report["type"] == "procs_ended":
            self._node_done(node)
            return
        reason = f"rank {report['rank']} on {self._protocol.nodes[node].host} {report['how']}"
        failure = RankFailure(node, reason, report["code"], report["rank"])
        if report["silent"] is None:
            self._fail(failure)
        else:
            since = asyncio.get_running_loop().time() - report["silent"]
            self._handle_hang(RankFailure(node, f"{reason}; see logs/stacks-*.txt", failure.code, failure.rank, since))

    def on_node_lost(self, node: int) -> None:
        """Stop waiting for a lost node. The state machine decides what happens to the other nodes."""
        if node in self._waiting:
            lost = RankFailure(node, f"{self._protocol.nodes[node].host} was lost", INFRASTRUCTURE_FAILED)
            self._failure = self._failure or lost
            self._node_done(node)

    def _fail(self, failure: RankFailure) -> None:
        """Record the first failure and end the gang: the other ranks would only wait for the failed one."""
        if self._failure is None:
            self._failure = failure
            if self._grace is None:
                self.end(min(FAILURE_GRACE_S, self._job.stop_grace))

    def _handle_hang(self, failure: RankFailure) -> None:
        """Record the rank that stopped first: ranks that wait for a hung rank stop writing, too."""
        first = self._failure
        if first is None:
            self._failure = failure
            self._dump_task = asyncio.ensure_future(self._dump_stacks_and_end(failure))
        elif first.since is not None and failure.since is not None and failure.since < first.since:
            self._failure = failure

    async def _dump_stacks_and_end(self, failure: RankFailure) -> None:
        """Write the stacks of all processes before ending them, as for a stalled driver."""
        self.on_note(failure.reason)
        try:
            if not any(await self._connections.ask("stacks", STACKS_TIMEOUT_S)):
                self.signal(signal.SIGABRT)  # Python's fault handler prints the stack into the process's log
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._over.wait(), ABORT_TIMEOUT_S)
        finally:
            self.end(min(FAILURE_GRACE_S, self._job.stop_grace))

    def _node_done(self, node: int) -> None:
        self._waiting.discard(node)
        if not self._waiting:
            self._over.set()

    # -- control ------------------------------------------------------------------------------------------------

    def signal(self, signum: int) -> None:
        """Send the signal to every process of every node."""
        for node in self._waiting:
            self._connections.send(node, "signal_procs", signal=signum)

    def end(self, grace: float) -> None:
        """Send TERM now and KILL after `grace` seconds; `run` then returns. A later call may only shorten the grace."""
        self._grace = grace if self._grace is None else min(grace, self._grace)
        self._cancelled.set()
        for node in self._waiting:
            self._connections.send(node, "end_procs", grace=self._grace)
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
