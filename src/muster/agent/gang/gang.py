"""The leader's side of a gang: processes on every active node in place of one driver, started and ended together.

state      leaves on                                                            to
waiting    run                                                                  running
running    a rank failed; a rank hung, once the stacks are kept; end            ending
running    every node has said that its part is over                            over: exit code 0
ending     every node has said so, or is lost, or has not for too long          over: the first failure's code
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

ECHO_S = 0.2  # how often rank 0's output is copied to where everybody looks
UNENDED_S = HEARTBEAT_TIMEOUT_S + 3.0  # beyond the grace: by then a lost node is known to be lost
STACKS_S = 45.0  # for all nodes to write their stacks
ABORT_S = 3.0  # for processes to print their own
REPORTS = ("proc_failed", "procs_ended")


@dataclass(frozen=True)
class RankFailure:
    """Why a gang failed: the node, in words with its rank, and the code that this is to the job."""

    node: int
    words: str
    code: int
    rank: int | None = None  # whose log tells more
    since: float | None = None  # of a hang: when the last sign of life was


@dataclass(frozen=True)
class GangExit(Exit):
    """A gang's end: the code of the rank that failed first, and in words which one that was."""

    first: str = ""

    def __str__(self) -> str:
        return f"failed: {self.first}"


class Gang:
    """To its leader what a `Driver` is."""

    def __init__(
        self,
        identity: Identity,
        job: Job,
        members: Connections,
        protocol: RunStateMachine,
        address: Callable[[], Awaitable[str]],
        fenced: Callable[[], float],
    ) -> None:
        """`address` is one of the leader's that other nodes have reached; before `fenced` an older one may still
        run."""
        self._identity, self._job, self._members, self._protocol = identity, job, members, protocol
        self._address, self._fenced = address, fenced
        self._cycle = -1  # until it runs
        self._waiting: set[int] = set()  # nodes whose part is not over
        self._over, self._called_off = asyncio.Event(), asyncio.Event()
        self._grace: float | None = None  # set when it is to end
        self._first: RankFailure | None = None
        self._unended: list[str] = []  # hosts that never said that their part is over
        self._port: MasterPort | None = None
        self._dumping: asyncio.Future[None] | None = None
        self.on_note: Callable[[str], None] = lambda text: None
        self.services: Callable[[int], dict[str, str]] = lambda node: {}  # where they are, for processes there

    async def run(self, command: list[str], env: dict[str, str], cwd: str) -> Exit:
        """As the driver's. Nodes know command, directory and most of `env` themselves: those may be secret."""
        await self._until_fenced()
        try:
            address = await self._address()
            self._port = take_master_port(self._identity, self._job, self._protocol.cycle)
        except OSError as error:
            return GangExit(code=INFRASTRUCTURE_FAILED, first=str(error))
        if self._grace is not None:  # it was ended before it had begun
            self._port.release()
            return Exit(signal=signal.SIGTERM)
        self._start(env, address, self._port.number)
        await self._follow_output()
        self._port.release()
        return self._exit()

    async def _until_fenced(self) -> None:
        """Ranks of a node that was lost end by themselves, but not at once."""
        left = self._fenced() - time.monotonic()
        if left > 0:
            self.on_note(f"in {left:.0f} s what the lost node ran has ended for sure; then the next gang starts")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._called_off.wait(), left)

    def _start(self, env: dict[str, str], address: str, port: int) -> None:
        active = [node for node in self._protocol.nodes if node.logical is not None]
        self._cycle, self._waiting = self._protocol.cycle, {node.rank for node in active}
        told = {"ray": env["RAY_ADDRESS"] if self._job.ray else None, "reason": env.get("MUSTER_RESTART_REASON")}
        for node in active:
            assert node.logical is not None and self._job.procs_per_node is not None
            part = GangPart(self._cycle, node.logical, len(active), self._job.procs_per_node, address, port)
            services = self.services(node.rank)
            self._members.send(node.rank, "start_procs", part=asdict(part), services=services, **told)

    async def _follow_output(self) -> None:
        """Until all is over; what rank 0 wrote is then complete in the driver's log."""
        attempt, loop = self._identity.attempt, asyncio.get_running_loop()
        echo = LogMirror(attempt.rank_log(0, self._cycle), attempt.driver_log)
        while True:
            last = self._over.is_set()
            try:
                await loop.run_in_executor(None, echo.copy)
            except OSError as error:  # a full disk costs the view, not the run
                logger.warning("rank 0's output could not be copied: %s", error)
            if last:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), ECHO_S)

    def _exit(self) -> Exit:
        if self._first is None and not self._unended:
            return Exit(code=0)
        left = [f"processes on {listed(self._unended)} could not be ended"] if self._unended else []
        words = [self._first.words] if self._first is not None else []
        code = self._first.code if self._first is not None else INFRASTRUCTURE_FAILED
        return GangExit(code=code, first="; ".join(words + left))

    def failure_source(self, leader: int) -> tuple[int, str]:
        """The node and the log that tell more of why it failed."""
        attempt = self._identity.attempt
        if self._first is None or self._first.rank is None:
            return leader, attempt.driver_log
        return self._first.node, attempt.rank_log(self._first.rank, self._cycle)

    # -- what is heard ------------------------------------------------------------------------------------------

    def take(self, node: int, report: dict[str, Any]) -> None:
        """A node's word about its part; of an older cycle it counts no more."""
        if report["cycle"] != self._cycle or node not in self._waiting:
            return
        if report["type"] == "procs_ended":
            self._is_done(node)
            return
        words = f"rank {report['rank']} on {self._protocol.nodes[node].host} {report['how']}"
        failure = RankFailure(node, words, report["code"], report["rank"])
        if report["silent"] is None:
            self._fail(failure)
        else:
            since = asyncio.get_running_loop().time() - report["silent"]
            self._hang(RankFailure(node, f"{words}; see logs/stacks-*.txt", failure.code, failure.rank, since))

    def lost(self, node: int) -> None:
        """Its part ends with it, and nobody is going to tell. What follows for the others the protocol decides."""
        if node in self._waiting:
            lost = RankFailure(node, f"{self._protocol.nodes[node].host} was lost", INFRASTRUCTURE_FAILED)
            self._first = self._first or lost
            self._is_done(node)

    def _fail(self, failure: RankFailure) -> None:
        """The first stands, and one is enough: the others would only wait for it."""
        if self._first is None:
            self._first = failure
            if self._grace is None:
                self.end(min(FAILURE_GRACE_S, self._job.stop_grace))

    def _hang(self, failure: RankFailure) -> None:
        """Ranks that wait for one that hangs fall silent, too: the one that was the first to do so is named."""
        first = self._first
        if first is None:
            self._first = failure
            self._dumping = asyncio.ensure_future(self._keep_stacks(failure))
        elif first.since is not None and failure.since is not None and failure.since < first.since:
            self._first = failure

    async def _keep_stacks(self, failure: RankFailure) -> None:
        """What every process is doing is kept before anything is ended, as for a stalled driver."""
        self.on_note(failure.words)
        try:
            if not any(await self._members.ask("stacks", STACKS_S)):
                self.signal(signal.SIGABRT)  # Python's own fault handler then prints where each was, into its log
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._over.wait(), ABORT_S)
        finally:
            self.end(min(FAILURE_GRACE_S, self._job.stop_grace))

    def _is_done(self, node: int) -> None:
        self._waiting.discard(node)
        if not self._waiting:
            self._over.set()

    # -- what is told -------------------------------------------------------------------------------------------

    def signal(self, signum: int) -> None:
        """To every process of every node."""
        for node in self._waiting:
            self._members.send(node, "signal_procs", signal=signum)

    def end(self, grace: float) -> None:
        """TERM now, KILL after the grace; `run` then returns. A later call may leave less time, never more."""
        self._grace = grace if self._grace is None else min(grace, self._grace)
        self._called_off.set()
        for node in self._waiting:
            self._members.send(node, "end_procs", grace=self._grace)
        if self._waiting:
            asyncio.get_running_loop().call_later(self._grace + UNENDED_S, self._give_up)

    async def close(self, grace: float = 0.0) -> None:
        """Returns when all is over."""
        self.end(grace)
        if self._waiting:
            await self._over.wait()

    def _give_up(self) -> None:
        """What even KILL does not end (a process stuck in a driver of the kernel's) must not hold the others."""
        if self._waiting:
            self._unended = [self._protocol.nodes[node].host for node in sorted(self._waiting)]
            logger.warning("processes on %s could not be ended", listed(self._unended))
            self._waiting.clear()
            self._over.set()
