"""One node's part in a gang: its processes in one scope, each with a log and a beat file of its own.

    state      leaves on                                            to
    starting   every process has been started                       running
    running    every process has ended                              ended
    (either)   a process cannot be started, or the leader's word      ending
    ending     nothing of them is left                              ended: procs_ended is told, the last word

The first process that fails is told at once; whether the others end because of it is the leader's to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.agent.environment import given_variables, job_environment
from muster.agent.gang.gang_environment import GangPart, rank_environment
from muster.agent.gang.hang_detector import HangDetector, SilentRank, beat_file
from muster.agent.job import Identity, Job
from muster.agent.leader.driver import LEFTOVER_GRACE_S
from muster.agent.leader.progress import read_beat
from muster.agent.private_dir import make_private
from muster.agent.ray.cluster import RayCluster
from muster.agent.ray.settings import temp_dir
from muster.exit_codes import INFRASTRUCTURE_FAILED, NOT_STARTED
from muster.lifecycle.config import FAILURE_GRACE_S
from muster.process import Exit, LeftoverProcess, ManagedProcess, Scope, SpawnError, sweep

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # how often signs of life are looked for
BEATS_S = 5.0  # how often the leader is told of beats
HUNG = 1  # the exit code that a hang counts as


@dataclass(frozen=True)
class GangOrder:
    """To start this node's part: with what of the driver's environment only the leader knows."""

    part: GangPart
    ray: str | None  # the cluster's address
    reason: str | None  # why this cycle follows the one before
    services: Mapping[str, str]  # where they are

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> GangOrder:
        return cls(GangPart(**message["part"]), message["ray"], message["reason"], message["services"])


class GangNode:
    """Begins at once; `close` returns when nothing is left."""

    def __init__(self, identity: Identity, order: GangOrder, tell: Callable[..., None]) -> None:
        """`tell` sends the leader a message: its kind, and its fields by name."""
        self._identity, self._order, self._part, self._tell = identity, order, order.part, tell
        cycle = self._part.cycle
        self._directory = temp_dir(identity.run.run_id, identity.attempt.number, cycle, identity.rank) + ".procs"
        self._logs = {n: identity.attempt.rank_log(self._part.rank(n), cycle) for n in range(self._part.procs)}
        self._scope = Scope("procs", directories=[self._directory])
        self._scope.on_left = self._tell_left
        self._opening = asyncio.ensure_future(self._scope.open())
        self._processes: dict[int, ManagedProcess] = {}  # by their number on the node
        self._signals: list[int] = []  # for those that are still being started
        self._closing: list[asyncio.Future[None]] = []  # filled when the end has begun
        self._failed = False
        self._beats: list[object] = []  # that the leader has been told of
        self._work = asyncio.ensure_future(self._run())

    def obey(self, message: dict[str, Any]) -> None:
        """The leader's further words about these processes."""
        if message["type"] == "signal_procs":
            self._signals.append(message["signal"])
            for process in self._processes.values():
                process.signal(message["signal"])
        else:
            self._closing.append(asyncio.ensure_future(self._close_scope(message["grace"])))

    async def close(self) -> None:
        """For whatever reason the node is to be clean now."""
        self._closing.append(asyncio.ensure_future(self._close_scope(FAILURE_GRACE_S)))
        await asyncio.wait([self._work])
        if self._scope.lost:
            sweep()  # they are this agent's own children now

    async def _run(self) -> None:
        try:
            job = await self._off_loop(self._prepare)
            base = await self._off_loop(self._environment, job)
            await self._opening
            for local in range(self._part.procs):
                await self._start(local, job, base)
            await self._until_all_have_ended(job.stall_timeout)
        except (OSError, SpawnError) as error:
            if not self._closing:
                self._fail(0, INFRASTRUCTURE_FAILED, f"could not be started: {error}")
        except Exception as error:  # a defect of our own must not look like a success
            self._fail(0, INFRASTRUCTURE_FAILED, f"could not be run: {error!r}")
        finally:
            await self._close_scope(LEFTOVER_GRACE_S)
            await self._tell_beats()
            await self._off_loop(self._remove_directory)
            self._tell("procs_ended", cycle=self._part.cycle)

    def _prepare(self) -> Job:
        make_private(os.path.dirname(self._directory))
        os.mkdir(self._directory, mode=0o700)
        os.makedirs(os.path.dirname(self._logs[0]), exist_ok=True)
        return Job.load(self._identity.run)

    def _environment(self, job: Job) -> dict[str, str]:
        """What all processes of this node have in common."""
        identity, order = self._identity, self._order
        again = {"MUSTER_RESTART_REASON": order.reason} if order.reason is not None else {}
        base = job_environment(os.environ, given_variables(identity), identity, self._part.cycle)
        cluster = RayCluster(identity, job)
        cluster.address = order.ray
        return {**cluster.environment(base, processes=self._part.procs), **order.services, **again}

    async def _start(self, local: int, job: Job, base: dict[str, str]) -> None:
        own = {**base, "MUSTER_BEAT_FILE": beat_file(self._directory, local)}
        env = rank_environment(own, self._part, local, self._identity.run.run_id, job.max_restarts)
        log = await self._off_loop(os.open, self._logs[local], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            process = await self._scope.spawn(job.command, env=env, cwd=job.workdir, stdout=log, stderr=log)
        except SpawnError as error:
            if self._scope.lost:  # it may run; if it does, it is our own child now, and `close` ends it
                self._fail(local, Exit().shell_code, str(Exit()))
            elif not self._closing:
                os.write(log, f"muster: the command could not be started: {error}\n".encode())
                self._fail(local, NOT_STARTED, f"could not be started: {error}")
            raise
        finally:
            os.close(log)
        self._processes[local] = process
        for signum in self._signals:
            process.signal(signum)

    async def _until_all_have_ended(self, stall_timeout: float | None) -> None:
        watching = [asyncio.ensure_future(self._tell_beats_regularly())]
        if stall_timeout is not None:
            watching.append(asyncio.ensure_future(self._feel_pulses(stall_timeout)))
        try:
            await asyncio.gather(*(self._await_end(local, process) for local, process in self._processes.items()))
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _await_end(self, local: int, process: ManagedProcess) -> None:
        exit = await process.wait()
        if exit.shell_code != 0:
            self._fail(local, exit.shell_code, str(exit))

    async def _tell_beats_regularly(self) -> None:
        while True:
            await asyncio.sleep(BEATS_S)
            await self._tell_beats()

    async def _tell_beats(self) -> None:
        """What is progress is the leader's to say; it hears of beats only when there are new ones."""
        files = [beat_file(self._directory, local) for local in range(self._part.procs)]
        beats = await self._off_loop(lambda: [read_beat(file) for file in files])
        marks = [mark for mark, _ in beats]
        if marks != self._beats and any(marks):
            self._beats = marks
            step = max((step for _, step in beats if step is not None), default=None)
            self._tell("procs_beat", step=step, cycle=self._part.cycle)

    async def _feel_pulses(self, timeout: float) -> None:
        """Until one is too weak; once they are being ended nobody has to give a sign of life."""
        pulse = HangDetector(timeout, self._logs, self._directory)
        while not self._closing and not self._failed:
            await asyncio.sleep(LOOK_S)
            running = [local for local, process in self._processes.items() if process.exit is None]
            silence: SilentRank | None = await self._off_loop(pulse.look, running, time.monotonic())
            if silence is not None and self._processes[silence.local].exit is None and not self._closing:
                how = f"hung: no output and no muster.beat() for {timeout:g} s"
                self._fail(silence.local, HUNG, how, silent=silence.seconds)

    def _fail(self, local: int, code: int, how: str, silent: float | None = None) -> None:
        """The first here is all that the leader needs; `silent` tells a hang, and for how long."""
        if not self._failed:
            self._failed = True
            rank = self._part.rank(local)
            logger.error("rank %s %s", rank, how)
            self._tell("proc_failed", rank=rank, code=code, how=how, silent=silent, cycle=self._part.cycle)

    async def _close_scope(self, grace: float) -> None:
        with contextlib.suppress(SpawnError):  # the supervisor was lost before it had begun
            await self._opening
            await self._scope.close(grace)

    def _tell_left(self, left: Sequence[LeftoverProcess]) -> None:
        for one in left:
            logger.warning("%s", one)
            self._tell("unended", text=str(one))

    def _remove_directory(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # another virtual node of this machine may still use it
            os.rmdir(os.path.dirname(self._directory))

    async def _off_loop(self, work: Callable[..., Any], *args: Any) -> Any:
        """File operations, on a thread: the filesystem may pause for longer than the leader waits for a heartbeat."""
        return await asyncio.get_running_loop().run_in_executor(None, work, *args)
